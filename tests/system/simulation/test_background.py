"""A service in the background: it answers when that very process says so, wherever it listens."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from aggregator_service.settings import AggregatorSettings
from shared.errors import SettingsError, UnavailableError
from shared.protocol.signing.invitation import read_invitation
from simulation.cli import app
from simulation.joining import background
from simulation.joining.background import serve_in_background
from simulation.ports import free_ports
from tests.support.small import small_aggregator


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LPSFED_AGGREGATOR_DEMO", "true")


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def running(result: Result) -> Iterator[int]:
    """The process that a command has left running, until the context ends."""
    assert result.exit_code == 0, (result.output, result.exception)
    [pid] = map(int, re.findall(r"until `kill (\d+)`", result.stderr))
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGTERM)
        while is_alive(pid):
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                break
            time.sleep(0.02)


@contextmanager
def taken(host: str = "127.0.0.1") -> Iterator[int]:
    with socket.create_server((host, 0)) as other:
        yield other.getsockname()[1]


def test_a_taken_port_is_an_error_at_once_and_nobody_is_invited_to_it(tmp_path: Path) -> None:
    with taken() as port:
        for flags in (("--detach",), ()):
            own = ("--state-directory", "operator", "--port", port, "--invite", "north")
            refused = call("aggregator", *own, *flags)
            assert refused.exit_code != 0 and isinstance(refused.exception, SettingsError)
            assert f"port: expected a free one, got http://127.0.0.1:{port}" in str(refused.exception)
    assert [*tmp_path.rglob("*.invite"), *tmp_path.rglob("*.log"), *tmp_path.rglob("north.json")] == []


def test_who_answers_at_the_address_is_not_taken_for_the_process_that_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken the port after it was looked at: the process ends, and the error says why."""
    monkeypatch.setattr(background, "require_free_port", lambda *_: None)
    with taken() as port:
        settings = small_aggregator(tmp_path / "operator", port=port)
        settings.state_directory.mkdir()
        words = ["aggregator", "--state-directory", "operator", "--port", str(port)]
        with pytest.raises(UnavailableError, match=r"it has ended with 2: .*expected a free one, got 127"):
            serve_in_background(words, tmp_path / "log", settings)


def test_a_port_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--detach: expected a port that others know, got 0"):
        serve_in_background(["aggregator"], tmp_path / "log", AggregatorSettings.model_construct(port=0))


def test_a_service_by_tls_with_certificates_of_callers_on_ipv6_is_waited_for(tmp_path: Path) -> None:
    """Nobody can call it who has no certificate: the process itself says that it is ready."""
    made = call("certificates", "tls", "--name", "aggregator.example.org", "--clients", 1)
    assert made.exit_code == 0, made.output
    [port], own = free_ports(1), ("--state-directory", "operator", "--host", "::1")
    tls = ("--tls-certificate", "tls/aggregator.crt", "--tls-key", "tls/aggregator.key")
    asks = ("--tls-client-authority", "tls/authority.crt", "--ca", "tls/authority.crt")
    with running(call("aggregator", *own, "--port", port, *tls, *asks, "--invite", "north", "--detach")) as pid:
        assert is_alive(pid)
        asked = read_invitation(tmp_path / "north.invite")
        assert asked.url == f"https://[::1]:{port}" and asked.authority == Path("tls/authority.crt").read_text().strip()
        refused = call("aggregator", *own, "--port", port, "--invite", "south", "--detach")
        assert f"expected a free one, got http://[::1]:{port}" in str(refused.exception)
        assert not Path("south.invite").exists()
