"""A client without anything to do: its trainer waits, small, and goes on once there is something."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from aggregator_service.app import create_app
from client_service.boundary.ledger import LEDGER, Ledger
from client_service.runtime.trainer_process import find_health_socket, find_socket
from client_service.settings import ClientSettings
from shared.protocol.signing.enrolment import ensure_key_pair, register_key_file
from tests.support.kept import keep_first_model
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import serve
from tests.support.small import BEARER, small_aggregator
from tests.system.client_service.http.test_server_and_trainer import (
    Running,
    command_line,
    is_running,
    mapped,
    patch,
    running,
    wait_for,
)

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="children are looked for in /proc"),
]
IDLE = {"trainer_idle_seconds": 0.3, "wait_seconds": 0.5}
HEAVY = {"torch", "polars", "scipy", "pandas", "pyarrow"}


@pytest.fixture
def silo(settings: ClientSettings, tmp_path: Path) -> Iterator[ClientSettings]:
    """A silo with a key and a model, and an aggregator without a run."""
    keys = tmp_path / "keys"
    register_key_file(ensure_key_pair(settings.name, settings.state_directory).public, keys)
    keep_first_model(settings)
    aggregator = create_app(small_aggregator(tmp_path / "aggregator", keys_directory=keys))
    with serve(aggregator, wind_down=aggregator.state.coordinator.wind_down) as url:
        yield settings.model_copy(update={"aggregator_url": url})


@contextmanager
def idling(silo: ClientSettings, **changes: Any) -> Iterator[Running]:
    """A client that waits soon."""
    given = {"aggregator_url": silo.aggregator_url, "method": silo.method.model_dump_json(exclude_unset=True)}
    with running(silo, **given, **IDLE, **changes) as client:
        yield client


def told(log: Path, event: str) -> list[dict[str, Any]]:
    """The lines of a log that tell of this event."""
    lines = [line for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"\n") and line[:1] == b"{"]
    return [said for line in lines if (said := json.loads(line))["event"] == event]


def waits(client: Running, times: int = 1) -> bool:
    """Does the trainer wait, for the so-manieth time?"""
    return client.child("--waiting") is not None and len(told(client.log, "trainer_idle")) == times


def open_files(pid: int) -> Counter[str]:
    """Counts what the descriptors of a process lead to, without numbers."""
    found: Counter[str] = Counter()
    for link in (Path("/proc") / str(pid) / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found[re.sub(r"\[?\d+\]?", "", os.readlink(link))] += 1
    return found


def keeps_open_no_more(pid: int, first: Counter[str]) -> bool:
    """Tells whether no file is open that was not at first: connections to the aggregator come and go."""
    return not open_files(pid) - first


def test_a_trainer_without_work_waits_without_torch_and_each_request_is_answered(silo: ClientSettings) -> None:
    shard, _ = keep_first_model(silo)
    with idling(silo) as client:
        wait_for(lambda: waits(client))
        pid, first = client.trainer, open_files(client.trainer)
        assert not mapped(pid) & HEAVY and "numpy" in mapped(pid)
        for path in (find_socket(silo.state_directory), find_health_socket(silo.state_directory)):
            assert oct(path.stat().st_mode & 0o777) == "0o600"
        assert client.trains() and 'lpsfed_client_phase{phase="waiting"} 1.0' in client.http.get("/metrics").text
        number = client.http.post("/v1/refresh").json()["number"]  # the first request, which is answered later
        assert number == 1 and client.trainer == pid
        wait_for(lambda: waits(client, 2))
        status = client.http.get("/v1/status").json()  # of the same silo, not of one that starts
        assert status["phase"] in ("waiting", "joining") and status["model"] == client.lists(shard.user_ids[0])["model"]
        found = client.http.get("/v1/refresh").json()  # whoever has asked for it still sees that it is done
        assert found["last_ended"] == number and "torch" in mapped(pid)
        assert told(client.log, "trainer_resumed")[0]["reason"] == "a request has come"
        wait_for(lambda: waits(client, 3))
        wait_for(lambda: keeps_open_no_more(pid, first))
        assert command_line(pid).count("--settings-descriptor") == 1
        assert waits(client, 3) and client.trainer == pid
        client.process.send_signal(signal.SIGTERM)
        assert client.process.wait(LONGEST_SECONDS) == 0 and not is_running(pid)


def test_events_and_an_erasure_that_come_while_the_trainer_waits_are_absorbed(silo: ClientSettings) -> None:
    shard, _ = keep_first_model(silo)
    gone, user = shard.user_ids[:2]
    with idling(silo, refresh_interactions=2) as client:
        wait_for(lambda: waits(client))
        client.post("one", user, shard.item_ids[0])
        assert not told(client.log, "trainer_resumed")
        client.post("two", "somebody new", shard.item_ids[1])
        wait_for(lambda: waits(client, 2))
        assert [one["reason"] for one in told(client.log, "trainer_resumed")] == ["a refresh is due"]
        assert [one["changed"] for one in told(client.log, "refreshed")] == [True]
        assert "fallback" not in client.lists("somebody new") and shard.item_ids[0] not in str(client.lists(user))
        receipt = client.http.delete(f"/v1/users/{gone}").json()["receipt"]
        assert client.lists(gone)["fallback"] == "unknown user"
        wait_for(lambda: client.has_done(receipt))
        wait_for(lambda: waits(client, 3))
        assert [one["erased"] for one in told(client.log, "refreshed")] == [0, 1]
        last = client.trainer
        client.process.kill()
        wait_for(lambda: not is_running(last))


def test_a_run_that_opens_while_the_trainer_waits_is_joined_and_trained_to_its_end(silo: ClientSettings) -> None:
    with idling(silo) as client:
        wait_for(lambda: waits(client))
        asked = {"rounds": 2, "seed": 0, "clients": 1}
        answer = httpx.post(f"{silo.aggregator_url}/v1/runs", json=asked, headers=BEARER, trust_env=False)
        assert answer.is_success, answer.text
        wait_for(lambda: waits(client, 2))
        assert [one["reason"] for one in told(client.log, "trainer_resumed")] == ["a run is open"]
        assert client.child("--waiting") == client.trainer  # and the run that is over does not wake it again
        quality = client.http.get("/v1/quality").json()
        assert (quality["run"], quality["finished"]) == ("run-1", True)
        assert [one["round"] for one in quality["rounds"]] == [0, 1, 2]
        wait_for(lambda: waits(client, 3))
        client.process.send_signal(signal.SIGTERM)
        assert client.process.wait(LONGEST_SECONDS) == 0
    ledger = Ledger(silo.state_directory / LEDGER)
    entries = list(ledger.entries())
    assert ledger.verify() == len(entries) and [one["sequence"] for one in entries] == [*range(1, len(entries) + 1)]
    made = Counter(one["sequence"] for one in entries if one["kind"] == "intent")
    answered = Counter(one["of"] for one in entries if one["kind"] == "outcome")
    cut_off = [one for one in entries if one["sequence"] in made.keys() - answered.keys()]
    assert answered.keys() <= made.keys() and {*answered.values()} == {1}
    assert {one["call"] for one in cut_off} <= {"current"} and len(cut_off) <= 3  # a poll that a switch ended
    assert sum(one["call"] == "update" for one in entries if one["kind"] == "intent") == 2


KEYS = {"application_key": "0123456789abcdef" * 2, "operator_key": "fedcba9876543210" * 2}
PROBES = (
    *(("GET", path) for path in ("/", "/?user=u", "/v1/status", "/v1/status?x=1", "/.env", "/docs/", "/v1/ledger")),
    *(
        ("POST", "/v1/refresh"),
        ("POST", "/xmlrpc.php"),
        ("HEAD", "/"),
        ("DELETE", "/v1/models/x"),
        ("PUT", "/static/x/y"),
    ),
)


def test_requests_without_a_key_wake_no_trainer_and_keep_none_awake(silo: ClientSettings) -> None:
    with idling(silo, **KEYS) as client:

        def probe() -> bool:
            found = [client.http.request(method, path).status_code for method, path in PROBES]
            assert {*found} <= {401, 404, 405}, found
            return client.child("--waiting") is not None

        wait_for(client.trains)
        wait_for(probe)
        for wrong in ({}, {"Authorization": f"Bearer {KEYS['operator_key'][1:]}"}):
            for method, path in PROBES:
                body = b"x" * 100_000 if method == "POST" else None
                answer = client.http.request(method, path, headers=wrong, content=body)
                asks = "www-authenticate" in answer.headers
                assert (answer.status_code, asks) == (401, path.partition("?")[0] == "/"), (method, path)
                assert answer.headers["content-type"] == "application/problem+json"
                assert method == "HEAD" or answer.json()["detail"] == "expected the operator's key"
        assert waits(client) and not told(client.log, "trainer_resumed")
        assert client.http.get("/docs").is_success and len(told(client.log, "trainer_resumed")) == 1
        wait_for(lambda: waits(client, 2))
        own = {"Authorization": f"Bearer {KEYS['operator_key']}"}
        assert client.http.post("/v1/refresh", headers=own).json()["number"] == 1


MOMENTS = (
    "os:execv before",
    "client_service.http.waiting_trainer:serve_waiting before",
    "client_service.http.waiting_trainer:WaitingTrainer.make_handover after",
    "client_service.app:serve_trainer before",
)


@pytest.mark.slow
def test_a_trainer_killed_while_it_waits_or_becomes_another_image_loses_nothing(
    silo: ClientSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = patch(tmp_path, "--trainer", MOMENTS, monkeypatch)
    shard, _ = keep_first_model(silo)
    kills = [(MOMENTS[0], False), (MOMENTS[1], False), (MOMENTS[0], True), (MOMENTS[2], True), (MOMENTS[3], True)]
    with idling(silo) as client:
        for number, (moment, waiting) in enumerate(kills):
            if waiting:
                wait_for(lambda: client.child("--waiting"))
            marker.write_text(moment)
            if waiting:
                receipt = client.http.delete(f"/v1/users/{shard.user_ids[number]}").json()["receipt"]
            wait_for(lambda: not marker.exists())
            assert client.http.get("/health/live").is_success
            if waiting:
                wait_for(partial(client.has_done, receipt))
        wait_for(lambda: client.child("--waiting"))
        os.kill(client.trainer, signal.SIGKILL)
        wait_for(lambda: len(told(client.log, "trainer_ended")) == len(kills) + 1)
        wait_for(lambda: client.http.get("/v1/status").is_success)
        assert client.http.get("/v1/ledger").json()["verified"]


@pytest.mark.slow
def test_twenty_waits_leave_no_file_open_and_no_request_unanswered(silo: ClientSettings) -> None:
    """Half of the requests come while the trainer becomes one that waits."""
    with idling(silo) as client:
        wait_for(lambda: waits(client))
        pid, first = client.trainer, open_files(client.trainer)
        for number in range(1, 21):
            assert client.http.get("/v1/status").is_success
            if number % 2:
                wait_for(partial(waits, client, number + 1))
            else:
                wait_for(lambda: len(told(client.log, "stopping")) == number + 1)  # noqa: B023
        wait_for(partial(waits, client, 21))
        assert client.trainer == pid
        wait_for(lambda: keeps_open_no_more(pid, first))
