"""A run whose aggregation would take all of the aggregator's memory is refused, and what a client says cannot make one.

Who: an operator's slip, or one client that tells counts of its graph (`anchor.size` = counts). The anchor is drawn by
the aggregator too, and a robust centre has a tensor of each client in memory: the system ended the aggregator, and
again after each start, because the run was resumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aggregator_service.aggregation.run_cost import estimate_costs, require_affordable
from shared.errors import SettingsError
from shared.method import run_memory
from shared.method.declaration import Part, TensorSpec
from shared.method.settings import MethodSettings, method_settings
from shared.strategies import build_strategy
from shared.strategies.agreement import declare_federation
from tests.support import drifting
from tests.support.aggregator import METHOD, running
from tests.support.drifting import register_drifting

if TYPE_CHECKING:
    from tests.support.aggregator import Running

__all__ = ["running"]
EIGHT = 8_000_000_000
HUGE = {"users": 1_000_000, "items": 1_000_000, "edges": 100_000_000}


def with_anchor(**size: Any) -> dict[str, Any]:
    return METHOD.model_copy(update={"anchor": METHOD.anchor.model_copy(update=size)}).model_dump(mode="json")


def require(name: str = "lpsfed", part: Part = "training", clients: int = 10, **changed: Any) -> None:
    method = method_settings(**changed)
    declared = declare_federation(build_strategy(name, method), method, secure=False)
    require_affordable(estimate_costs(declared, method, part, clients), EIGHT)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"anchor.users": 1_000_000, "anchor.items": 1_000_000, "anchor.edges": 100_000_000}, "the anchor"),
        ({"anchor.users": 1_000_000, "anchor.items": 9_000, "cutoff": 4_096}, "the anchor"),
        ({"aggregate": "krum", "tolerated": 1, "width": 1_024, "clients": 1_000}, "aggregate = krum"),
        ({"name": "fedpub", "width": 1_024, "clients": 200}, "a mean for each of 200 clients"),
        ({"name": "fedmf", "catalogue": 1 << 24, "width": 1_024}, "the run's state"),
        ({"name": "fedmf", "catalogue": 1 << 21, "width": 128, "quarantine_factor": 2.0}, "quarantine_factor"),
        ({"part": "basis", "catalogue": 1 << 24, "basis.kind": "iterated", "basis.rank": 1_024}, "the run's state"),
    ],
)
def test_settings_that_are_each_in_range_are_refused_where_together_they_cost_too_much(
    changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=r"^most_memory_bytes: expected a run.*MOST_MEMORY_BYTES") as refused:
        require(**changed)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"width": 256, "aggregate": "median", "clients": 200},
        {"name": "fedpub", "clients": 100},
        {"name": "fedmf", "catalogue": 1_000_000, "quarantine_factor": 2.0},
        {"part": "basis", "catalogue": 8_192, "basis.kind": "exact"},
        {"part": "basis", "catalogue": 40_000, "basis.kind": "iterated"},
    ],
)
def test_usual_settings_are_never_refused_on_an_ordinary_machine(changed: dict[str, Any]) -> None:
    require(**changed)


def test_what_is_broadcast_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    register_drifting(monkeypatch)
    require(drifting.NAME)
    monkeypatch.setattr(drifting, "TOLD", TensorSpec(name="told", shape=(1 << 30,)))
    with pytest.raises(SettingsError, match="the run's state"):
        require(drifting.NAME)


@pytest.mark.anyio
async def test_a_run_that_takes_all_memory_is_refused_and_the_next_one_begins(running: Running) -> None:
    async with running(method=METHOD, most_memory_bytes=EIGHT) as federation:
        await federation.joined("north", "south")
        refused = await federation.start_run(method=with_anchor(**HUGE), clients=2, rounds=1)
        assert refused.status_code == 422
        assert "most_memory_bytes: expected" in refused.text and "anchor.users 1,000,000" in refused.text
        assert (await federation.start_run(clients=2, rounds=1)).json()["run"] == "run-1"


@pytest.mark.anyio
async def test_counts_that_a_client_makes_up_end_the_run_and_not_the_aggregator(running: Running) -> None:
    async with running(method=METHOD, most_memory_bytes=EIGHT) as federation:
        await federation.joined("north")
        begun = await federation.start_run(method=with_anchor(size="counts"), clients=2, rounds=1)
        assert begun.status_code == 201
        liar = federation.client("south")
        assert (await liar.join(counts=HUGE)).status_code == 200
        answer = await liar.get("/v1/runs/run-1/rounds/1/anchor")
        assert answer.status_code == 409 and "most_memory_bytes" in answer.text
        assert (await federation.history())["phase"] == "failed"
        refused = await federation.start_run(method=with_anchor(size="counts"), clients=2, rounds=1)
        assert refused.status_code == 422
        assert (await federation.start_run(clients=2, rounds=1)).status_code == 201


@pytest.mark.anyio
async def test_settings_that_take_all_memory_are_refused_at_the_start(running: Running) -> None:
    method = MethodSettings.model_validate(with_anchor(**HUGE))
    with pytest.raises(SettingsError, match=r"most_memory_bytes: .*anchor.users 1,000,000"):
        async with running(method=method, most_memory_bytes=EIGHT):
            pass


@pytest.mark.anyio
async def test_a_run_of_an_earlier_process_is_ended_at_the_start_where_it_takes_all_memory(running: Running) -> None:
    """Else it would end each new process in turn."""
    size = with_anchor(users=2_000, items=2_000, edges=100_000)
    async with running(method=METHOD, most_memory_bytes=EIGHT) as federation:
        await federation.begun("north", "south", method={"anchor": size["anchor"]})
    async with running(method=METHOD, most_memory_bytes=5_000_000) as federation:
        found = await federation.history()
        assert found["phase"] == "failed" and "most_memory_bytes" in found["reason"]
        assert (await federation.start_run(clients=2, rounds=1)).status_code == 201


def test_without_a_setting_the_bound_is_a_part_of_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_memory, "usable_memory", lambda: 8_000_000)
    method = method_settings()
    declared = declare_federation(build_strategy("lpsfed", method), method, secure=False)
    with pytest.raises(SettingsError, match=r"at most 6.0 MB of memory here"):
        require_affordable(estimate_costs(declared, method, "training", 3), None)
