"""The same federation as real processes on loopback ports, ended by their handles."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace

import anyio.to_thread
import pytest

from shared.errors import UnavailableError
from simulation.experiments import processes as subject
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import conduct_run
from simulation.experiments.in_process import simulate_experiment
from simulation.experiments.processes import choose_addresses, connect_services, free_ports, start_services
from tests.simulation.test_run import digest

Described = Callable[..., Experiment]


def test_free_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with socket.create_server(("127.0.0.1", ports[0])) as server:
        assert server.getsockname()[1] == ports[0]


def test_every_service_has_an_address_of_its_own_on_loopback(experiment: Described) -> None:
    places = choose_addresses(experiment("run"))
    urls = [places.aggregator, *places.clients.values()]
    assert set(places.clients) == {"client-1", "client-2"} and len(set(urls)) == 3
    assert all(url.startswith("http://127.0.0.1:") for url in urls)


@pytest.mark.anyio
async def test_nobody_at_an_address_is_named_in_bounded_time(
    experiment: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "START_SECONDS", 0.2)
    described = experiment("run")
    places = choose_addresses(described)
    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:\d+: expected a ready service within 0\.2 s"):
        async with connect_services(described, places):
            pass


@pytest.mark.processes
@pytest.mark.anyio
async def test_processes_end_with_the_same_digest_as_one_process_and_end_with_their_context(
    experiment: Described,
) -> None:
    described = experiment("processes")
    places = choose_addresses(described)
    with start_services(described, places) as children:
        async with connect_services(described, places) as federation:
            outcome = await conduct_run(federation, described.run_request(), lambda _: None)
            quality = outcome.qualities["client-1"]
        handles = children.processes
        assert set(handles) == {"aggregator", "client-1", "client-2"}
        assert [handle.poll() for handle in handles.values()] == [None] * 3
    assert [handle.poll() for handle in handles.values()] == [0] * 3  # asked to end, not killed
    assert outcome.history.phase == "finished" and quality.test is not None
    logs = [path.read_text() for path in (described.folder / "logs").iterdir()]
    secrets = (described.token, described.application_key, described.operator_key)
    assert len(logs) == 3 and not any(word in text for text in logs for word in ("Traceback", *secrets))
    here = await anyio.to_thread.run_sync(simulate_experiment, experiment("one-process"), lambda _: None)
    assert digest(outcome) == digest(here)
    assert quality.test == here.qualities["client-1"].test


@pytest.mark.processes
@pytest.mark.anyio
async def test_a_service_that_cannot_start_is_named_and_the_others_end(experiment: Described) -> None:
    described = experiment("broken")
    described = replace(described, shards=described.shards[:1])
    (described.shards[0] / "interactions.parquet").unlink()
    places = choose_addresses(described)
    with start_services(described, places) as children:
        ended = f"{places.clients['client-1']}: the service ended with code 1"
        with pytest.raises(UnavailableError, match=ended):
            async with connect_services(described, places, children):
                pass
    assert None not in [handle.poll() for handle in children.processes.values()]
    log = (described.folder / "logs" / "client-1.log").read_text()
    assert "\nclient: " in log and "interactions.parquet" in log and "Traceback" not in log
