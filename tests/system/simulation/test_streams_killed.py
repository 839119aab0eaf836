"""Processes that are killed while streams are held: all come back, nothing is missed, no work is done twice."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from audit.evidence.collect import read_aggregator_evidence
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Federation, execute_run
from simulation.experiments.processes import (
    choose_addresses,
    connect_services,
    start_aggregator,
    start_client,
    start_services,
)
from tests.support.questions import LONGEST_SECONDS

Described = Callable[..., Experiment]
pytestmark = [pytest.mark.processes, pytest.mark.anyio]


async def held_streams(federation: Federation, expected: int) -> None:
    """Wait until the aggregator holds so many."""
    with anyio.fail_after(LONGEST_SECONDS):
        while True:
            text = (await federation.operator.get("/metrics")).text
            found = re.search(r"^lpsfed_aggregator_streams ([0-9.]+)$", text, re.M)
            assert found is not None
            if float(found[1]) == expected:
                return
            await anyio.sleep(0.1)


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


@pytest.mark.slow
async def test_killed_services_come_back_by_their_streams_and_every_update_comes_once(experiment: Described) -> None:
    described = replace(experiment("killed"), rounds=2)
    places = choose_addresses(described)
    port = {name: urlsplit(url).port or 0 for name, url in {**places.clients, "aggregator": places.aggregator}.items()}
    logs = described.folder / "logs"
    own = described.make_aggregator_settings(port=port["aggregator"])
    with start_services(described, places) as children:

        async def again(name: str) -> None:
            """The service once more, as a supervisor would start it."""
            killed = children.processes[name]
            killed.kill()
            killed.wait()
            assert killed.stdin is not None
            killed.stdin.close()
            if name == "aggregator":
                children.processes[name] = start_aggregator(own, logs / "aggregator.log")
                return
            shard = next(one for one in described.shards if one.name == name)
            client = described.make_client_settings(shard, aggregator_url=places.aggregator, port=port[name])
            children.processes[name] = start_client(client, logs / f"{name}.log")

        async with connect_services(described, places, children) as federation:
            await held_streams(federation, 2)
        await again("aggregator")
        async with connect_services(described, places, children) as federation:
            first = await execute_run(federation, described.run_request(), lambda _: None)
            await held_streams(federation, 2)
        files = open_files(children.pids["aggregator"])
        for _ in range(2):
            await again("client-1")
            async with connect_services(described, places, children) as federation:
                await held_streams(federation, 2)
        assert open_files(children.pids["aggregator"]) <= files + 2, "a lost stream leaves nothing open"
        async with connect_services(described, places, children) as federation:
            second = await execute_run(federation, described.run_request(), lambda _: None)
            arrivals = (await read_aggregator_evidence(federation.operator, "aggregator")).arrivals
    assert [first.history.phase, second.history.phase] == ["finished"] * 2
    updates = Counter((one.run, one.round, one.client) for one in arrivals if one.call == "update")
    assert len(updates) == 2 * 2 * 2 and set(updates.values()) == {1}
    assert {one.status for one in arrivals if one.call == "update"} == {201}
