"""A socket of UNIX in a container is a failure, and what answers behind it as an engine does is called an engine."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from audit.probes import sockets

if TYPE_CHECKING:
    from conftest import Made

DOCKER = b"HTTP/1.0 200 OK\r\nApi-Version: 1.41\r\nServer: Docker/20.10 (linux)\r\n\r\nOK"
CONTAINERD = b"\0\0\6\4\0\0\0\0\0\0\5\0\0\x40\0"


@contextmanager
def listening(path: Path, answers: dict[bytes, bytes]) -> Iterator[None]:
    """A server that answers what begins like this by that, and everything else by closing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_PATH)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{folder}/{path.name}")
        server.listen()
        thread = threading.Thread(target=_serve, args=(server, answers), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            os.close(folder)


def _serve(server: socket.socket, answers: dict[bytes, bytes]) -> None:
    while True:
        try:
            one, _ = server.accept()
        except OSError:
            return
        with one:
            asked = one.recv(4096)
            one.sendall(next((said for start, said in answers.items() if asked.startswith(start)), b""))


@pytest.mark.parametrize("name", ["aggregator", "client-2", "gateway-2"])
@pytest.mark.parametrize("place", ["/state/docker.sock", "/public/x", "/dev/x", "/opt/deep/readme.txt"])
def test_a_socket_is_found_under_any_name_though_nobody_answers(part: Made, name: str, place: str) -> None:
    broken = part(name)
    with listening(broken.root / place.lstrip("/"), {}):
        told = broken.broken()
    assert told.pop("sockets: of UNIX") == f"1: {place}"
    assert set(told) <= {"sockets: a container engine's"} and bool(told) == (place == "/state/docker.sock")


TRAINER, HEALTH = "state/trainer.sock", "state/health.sock"  # by which a client's two processes speak with each other


@pytest.mark.parametrize("place", [TRAINER, HEALTH])
def test_the_socket_of_a_client_s_own_processes_is_expected_in_its_state(part: Made, place: str) -> None:
    broken = part("client-2")
    with listening(broken.root / place, {}):
        assert broken.broken() == {}


def test_such_a_socket_in_another_part_is_found(part: Made) -> None:
    other = part("aggregator")
    with listening(other.root / TRAINER, {}):
        assert other.broken() == {"sockets: of UNIX": f"1: /{TRAINER}"}


def test_an_engine_is_found_behind_an_expected_socket_too(part: Made) -> None:
    broken = part("client-2")
    with listening(broken.root / TRAINER, {b"GET": DOCKER}):
        assert broken.broken() == {"sockets: a container engine's": f"at /{TRAINER}"}


@pytest.mark.parametrize("answers", [{b"GET": DOCKER}, {b"PRI": CONTAINERD}])
def test_an_engine_is_known_by_its_answer(part: Made, answers: dict[bytes, bytes]) -> None:
    broken = part("aggregator")
    with listening(broken.root / "state" / "x", answers):
        told = broken.broken()
    assert told == {"sockets: of UNIX": "1: /state/x", "sockets: a container engine's": "at /state/x"}


def test_one_that_never_answers_is_not_waited_for_long(part: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "SECONDS", 0.05)
    broken = part("gateway")
    folder = os.open(broken.root / "tmp", os.O_PATH)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(f"/proc/self/fd/{folder}/x")
        silent.listen()
        assert broken.broken() == {"sockets: of UNIX": "1: /tmp/x"}
    os.close(folder)
