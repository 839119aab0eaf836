"""`lpsfed refresh` and `lpsfed models` against a client on a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from client_service.app import create_app
from client_service.settings import client_settings
from client_service.shard.commit import only_writer
from shared.protocol.signing.enrolment import kept_pair
from simulation.cli import app
from tests.support.federation import Unreachable, bearer
from tests.support.given import Silos
from tests.support.kept import keep_first_model
from tests.support.serving import serve
from tests.support.small import small_client

OPERATOR, APPLICATION = "zYxWvUt9876543210-zYxWvUt9876543210", "AbCdEfGh0123456789-AbCdEfGh0123456789"


@pytest.fixture
def shard(silos: Silos) -> Path:
    return silos(1)[0]


@pytest.fixture
def silo(shard: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a client with the models of two runs."""
    keys = {"application_key": APPLICATION, "operator_key": OPERATOR}
    plain = small_client(shard, tmp_path)
    for run in ("run-1", "run-2"):
        keep_first_model(plain, run)
    kept_pair(plain.name, plain.state_directory)
    (tmp_path / "operator.key").write_text(OPERATOR)
    settings = client_settings(**{**dict(plain), **keys})
    with serve(create_app(settings, Unreachable()), settings) as url:
        yield url


def ask(silo: str, tmp_path: Path, *words: str) -> Result:
    flags = ("--client-url", silo, "--operator-key-file", str(tmp_path / "operator.key"))
    return CliRunner().invoke(app, [*words, *flags])


def test_a_refresh_is_waited_for_and_told(silo: str, tmp_path: Path) -> None:
    assert "nothing is changed" in ask(silo, tmp_path, "refresh").stdout
    event = {"event": "e", "user": "new", "item": "item-00"}
    headers = bearer(APPLICATION)
    httpx.post(f"{silo}/v1/interactions", json={"interactions": [event]}, headers=headers).raise_for_status()
    told = ask(silo, tmp_path, "refresh", "--json")
    assert told.exit_code == 0 and json.loads(told.stdout)["changed"] is True
    answer = httpx.get(f"{silo}/v1/users/new/recommendations", headers=headers).json()
    assert answer["model"] == "refresh.1" and "fallback" not in answer


def test_a_refresh_that_fails_ends_with_1_and_why(silo: str, shard: Path, tmp_path: Path) -> None:
    with only_writer(shard):
        failed = ask(silo, tmp_path, "refresh")
    assert failed.exit_code == 1 and "nobody else is changing" in str(failed.exception)


def test_models_are_listed_and_an_earlier_one_is_served(silo: str, tmp_path: Path) -> None:
    lines = ask(silo, tmp_path, "models").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["*", "run-1.0"] and lines[0].split()[1] == "run-2.0"
    chosen = json.loads(ask(silo, tmp_path, "models", "--serve", "run-1.0", "--json").stdout)["models"]
    assert [(one["version"], one["served"]) for one in chosen] == [("run-1.0", True), ("run-2.0", False)]
    odd = ask(silo, tmp_path, "models", "--serve", "run-2.0/serve?x=1#")  # no part of it is a path or a query
    assert odd.exit_code == 1 and "expected the version of a kept model" in str(odd.exception)
    refused = ask(silo, tmp_path, "models", "--serve", "run-7.0")
    assert refused.exit_code == 1 and "expected the version of a kept model" in str(refused.exception)


def test_nobody_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.operator_calls.time", Clockwork())
    (tmp_path / "operator.key").write_text(OPERATOR)
    refused = ask("http://127.0.0.1:1", tmp_path, "models")
    assert refused.exit_code == 1 and "expected the client, got ConnectError" in str(refused.exception)


class Clockwork:
    """A time in which a minute passes with each look."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        self._now += 61.0
        return self._now

    def sleep(self, seconds: float) -> None:
        del seconds
