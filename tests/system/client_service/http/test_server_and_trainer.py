"""A client as it runs: a server that answers, and a trainer beside it, whatever becomes of either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_service.runtime.trainer_process import find_socket
from client_service.settings import ClientSettings
from shared.protocol.signing.enrolment import kept_pair
from simulation.experiments.processes import free_ports
from tests.support.kept import keep_first_model
from tests.support.questions import LONGEST_SECONDS

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="children are looked for in /proc"),
]


class Running:
    """A client's server, and what can be asked of it."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.log = process, log
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=LONGEST_SECONDS)

    def child(self, word: str) -> int | None:
        """The process that was started with this word of a command line."""
        return next((pid for pid in children(self.process.pid) if word in command_line(pid)), None)

    @property
    def trainer(self) -> int:
        found = self.child("--trainer")
        assert found is not None
        return found

    def ready(self) -> dict[str, Any] | None:
        with suppress(httpx.TransportError):
            answer = self.http.get("/health/ready")
            return answer.json() if answer.is_success else None
        return None

    def trains(self) -> bool:
        return (self.ready() or {}).get("trainer") == "running"

    def lists(self, user: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/users/{user}/recommendations?k=40")
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def post(self, event: str, user: str, item: str) -> None:
        body = {"interactions": [{"event": event, "user": user, "item": item}]}
        answer = self.http.post("/v1/interactions", json=body)
        assert answer.json() == {"accepted": 1, "repeated": 0, "unknown_items": 0}


@contextmanager
def running(settings: ClientSettings, **changes: Any) -> Iterator[Running]:
    """A client as processes of their own, with their log."""
    log, (port,) = settings.state_directory.parent / "client.log", free_ports(1)
    names = ("name", "shard", "state_directory")
    given = {name: getattr(settings, name) for name in names} | {"port": port} | changes
    environment = {f"LPSFED_CLIENT_{name.upper()}": str(value) for name, value in given.items()}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "client_service"],
            env=os.environ | environment | {"LPSFED_CLIENT_AGGREGATOR_URL": "http://127.0.0.1:9"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
        found = Running(process, port, log)
        try:
            yield found
        finally:
            process.kill()
            process.wait()
            found.http.close()


def wait_for(question: Callable[[], object]) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while not question():
        assert time.monotonic() < until
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """Of a process, which may have ended."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if parent_of(path) == pid]


def parent_of(process: Path) -> int:
    with suppress(OSError):
        return int((process / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[1])
    return 0


def command_line(pid: int) -> str:
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


def is_running(pid: int) -> bool:
    """Whether a process is there and has not ended. One whose parent has yet to ask for its end has ended."""
    with suppress(OSError):
        stat = (Path("/proc") / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.fixture
def silo(settings: ClientSettings) -> ClientSettings:
    """A silo with a key and a model."""
    kept_pair(settings.name, settings.state_directory)
    keep_first_model(settings)
    return settings


def test_a_killed_or_stopped_trainer_keeps_nobody_from_answers_and_loses_nothing(silo: ClientSettings) -> None:
    shard, _ = keep_first_model(silo)
    gone, user = shard.user_ids[:2]
    with running(silo) as client:
        wait_for(client.trains)
        first = client.trainer
        assert oct(find_socket(silo.state_directory).stat().st_mode & 0o777) == "0o600"
        assert client.http.get("/v1/status").json()["client"] == silo.name
        os.kill(first, signal.SIGSTOP)
        client.post("stopped", user, shard.item_ids[0])
        assert shard.item_ids[0] not in [one["item"] for one in client.lists(user)["items"]]
        receipt = client.http.delete(f"/v1/users/{gone}").json()["receipt"]
        assert client.lists(gone)["fallback"] == "unknown user"
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not is_running(first))
        assert client.http.get("/health/live").is_success
        client.post("killed", user, shard.item_ids[1])
        assert client.lists(gone)["fallback"] == "unknown user"
        wait_for(lambda: client.http.get(f"/v1/erasures/{receipt}").json()["done_at"] is not None)  # by the next one
        assert client.trainer != first and b'"event": "trainer_ended"' in client.log.read_bytes()
        wait_for(lambda: client.http.get("/v1/refresh").json()["phase"] == "idle")
        listed = [one["item"] for one in client.lists(user)["items"]]
        assert not {*shard.item_ids[:2]} & {*listed} and client.lists(gone)["fallback"] == "unknown user"
        client.process.send_signal(signal.SIGTERM)
        assert client.process.wait(LONGEST_SECONDS) == 0
        assert not children(client.process.pid)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_killed_server_takes_its_trainer_along_and_another_one_goes_on(silo: ClientSettings, stopped: bool) -> None:
    shard, _ = keep_first_model(silo)
    with running(silo) as client:
        wait_for(client.trains)
        client.post("before", shard.user_ids[0], shard.item_ids[0])
        trainer = client.trainer
        if stopped:
            os.kill(trainer, signal.SIGSTOP)
        client.process.kill()
        wait_for(lambda: not is_running(trainer))
    with running(silo) as client:
        wait_for(client.trains)
        assert shard.item_ids[0] not in [one["item"] for one in client.lists(shard.user_ids[0])["items"]]


def test_servers_share_the_port_and_are_started_again(silo: ClientSettings) -> None:
    with running(silo, workers=2) as client:
        wait_for(client.trains)
        wait_for(lambda: client.child("--server"))
        first = client.child("--server")
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: client.child("--server") not in (first, None))
        assert b'"event": "server_ended"' in client.log.read_bytes()
        left = children(client.process.pid)
        assert len(left) == 2
        client.process.send_signal(signal.SIGTERM)
        client.process.wait(LONGEST_SECONDS)
        wait_for(lambda: not any(is_running(pid) for pid in left))


def test_a_mistake_in_the_data_is_told_by_the_exit_code_and_one_line(silo: ClientSettings) -> None:
    (silo.shard / "interactions.parquet").write_bytes(b"damaged")
    with running(silo) as client:
        assert client.process.wait(LONGEST_SECONDS) == 1
        said = [line for line in client.log.read_text(encoding="utf-8").splitlines() if not line.startswith("{")]
    assert said and all(line.startswith("client: ") and "interactions.parquet" in line for line in said)


def test_a_second_client_of_a_state_directory_ends_with_a_mistake_in_settings(silo: ClientSettings) -> None:
    with running(silo) as client:
        wait_for(client.trains)
        other = silo.model_copy(update={"shard": silo.shard})
        with running(other) as second:
            assert second.process.wait(LONGEST_SECONDS) == 2
            assert f"another process ({client.process.pid}) is using" in second.log.read_text(encoding="utf-8")
        assert client.trains()


def test_a_state_directory_with_a_long_path_has_its_socket_elsewhere(silo: ClientSettings, tmp_path: Path) -> None:
    long = tmp_path / ("long-" * 20)
    silo.state_directory.rename(long)
    with running(silo.model_copy(update={"state_directory": long})) as client:
        wait_for(client.trains)
        found = find_socket(long)
        assert len(str(found)) < 100 and found.parent.stat().st_mode & 0o777 == 0o700
        assert client.http.get("/v1/status").is_success
