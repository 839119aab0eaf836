"""Services as processes on loopback end as one process does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import anyio.to_thread
import pytest

from shared.errors import UnavailableError
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import execute_run
from simulation.experiments.in_process import simulate_experiment
from simulation.experiments.processes import choose_addresses, connect_services, start_services
from tests.service.simulation.test_run import digest

Described = Callable[..., Experiment]


@pytest.mark.processes
@pytest.mark.anyio
async def test_processes_end_with_the_same_digest_as_one_process_and_end_with_their_context(
    experiment: Described,
) -> None:
    described = experiment("processes")
    places = choose_addresses(described)
    with start_services(described, places) as children:
        async with connect_services(described, places) as federation:
            outcome = await execute_run(federation, described.run_request(), lambda _: None)
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
