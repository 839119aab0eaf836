"""A run whose settings cost too much is refused, and no error of a run ends what a silo does beside it.

Who: the aggregator, in any mode, by settings that are each within their range. An anchor of 10^6 users, 10^6 items and
10^8 edges took all memory: the error ended the agent for good, and with it refreshes, so that erasures were never
done; or the system ended the process, and again after each start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from client_service.boundary.policy import Policy
from client_service.federation.agent import Agent
from client_service.federation.run_cost import require_affordable
from client_service.federation.training_run import TrainingRun
from client_service.refresh.rebuild import ModelRenewal
from shared import memory
from shared.errors import SettingsError
from shared.memory import usable_memory
from shared.method.declaration import Counts, Part, TensorSpec
from shared.method.settings import AnchorSettings, method_settings
from shared.strategies import build_strategy, strategy_of_part
from tests.support.kept import keep_first_model
from tests.support.questions import finished, has_problem, read
from tests.support.small import small_client
from tests.support.telling import event, is_erased, post, serves

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Opened, Silos

    from tests.support.given import Federate, Until
    from tests.support.misled import Mislead

pytestmark = pytest.mark.anyio
HUGE = AnchorSettings(users=1_000_000, items=1_000_000, edges=100_000_000)
SILO = Counts(users=6_040, items=3_706, edges=800_000)
LARGE_SILO = Counts(users=140_000, items=27_000, edges=16_000_000)
SESSIONS = Counts(users=600_000, items=40_000, edges=2_000_000)
EIGHT = Policy(most_memory_bytes=8_000_000_000)


async def test_a_silo_refuses_the_anchor_that_takes_all_memory(mislead: Mislead) -> None:
    bounded = {"policy": {"most_memory_bytes": 8_000_000_000}}
    async with mislead(1, secure=False, anchor=HUGE, client=bounded) as clients:
        await clients.require_refused("the anchor (anchor.users 1,000,000")
        http = clients.clients["client-1"]
        assert (await http.get("/health/live")).status_code == 200
        assert "policy.most_memory_bytes" in await clients.problem("client-1")


def require(
    shard: Counts, policy: Policy = EIGHT, *, part: Part = "training", name: str = "lpsfed", **changed: Any
) -> None:
    preset = changed.pop("preset", "default")
    method = method_settings(preset, **changed)
    declared = build_strategy(name, method).declaration(method)
    strategy = strategy_of_part(part, name, method)
    sent = strategy.declaration(method) if part == "basis" else declared
    require_affordable(strategy, method, policy, shard, sent, part)


@pytest.mark.parametrize(
    ("shard", "changed", "words"),
    [
        (SILO, {"anchor.users": 1_000_000, "anchor.items": 1_000_000, "anchor.edges": 100_000_000}, "anchor.users"),
        (SILO, {"anchor.users": 1_000_000, "anchor.items": 9_000, "cutoff": 4_096}, "the anchor"),
        (SILO, {"anchor.users": 100_000, "anchor.items": 10_000, "anchor.edges": 100_000_000}, "the anchor"),
        (SILO, {"batch_size": 1_000_000, "negatives": 4_096}, "negatives 4,096"),
        (SILO, {"local_epochs": 100, "negatives": 4_096, "width": 1_024}, "of about"),
        (SILO, {"local_epochs": 100, "batch_size": 1}, "local_epochs 100"),
        (LARGE_SILO, {"cutoff": 4_096, "width": 1_024}, "cutoff 4,096"),
        (LARGE_SILO, {"model": "ngcf", "width": 1_024, "layers": 8}, "steps of"),
        (SILO, {"name": "fedmf", "catalogue": 1 << 24, "width": 1_024}, "width 1,024"),
        (
            SESSIONS,
            {"preset": "sessions", "name": "fedavg", "catalogue": 40_000, "batch_size": 1_000_000},
            "batch_size",
        ),
        (
            SILO,
            {
                "part": "basis",
                "catalogue": 1 << 20,
                "basis.kind": "iterated",
                "basis.words": 4_096,
                "basis.rounds": 100,
            },
            "directions",
        ),
        (SILO, {"part": "basis", "catalogue": 1 << 24, "basis.kind": "iterated", "basis.rank": 4_096}, "basis.rank"),
    ],
)
def test_settings_that_are_each_in_range_are_refused_where_together_they_cost_too_much(
    shard: Counts, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=r"^policy: expected a r") as refused:
        require(shard, **changed)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("shard", "changed"),
    [
        (SILO, {}),
        (SILO, {"preset": "paper"}),
        (SILO, {"part": "basis", "catalogue": 3_706, "basis.kind": "exact"}),
        (SILO, {"part": "basis", "catalogue": 8_192, "basis.kind": "exact", "basis.epsilon": 8.0}),
        (SILO, {"part": "basis", "catalogue": 40_000, "basis.kind": "iterated", "basis.words": 64}),
        (LARGE_SILO, {}),
        (LARGE_SILO, {"preset": "paper"}),
        (SESSIONS, {"preset": "sessions", "name": "fedavg", "catalogue": 40_000}),
        (SESSIONS, {"preset": "sessions", "name": "fedavg", "catalogue": 40_000, "model": "tagnn"}),
    ],
)
def test_usual_settings_are_never_refused_on_an_ordinary_machine(shard: Counts, changed: dict[str, Any]) -> None:
    require(shard, **changed)


@pytest.mark.parametrize("kind", ["broadcasts", "client_memory"])
def test_what_a_strategy_keeps_beside_the_model_counts(kind: str) -> None:
    method = method_settings("default")
    small, large = (
        replace(build_strategy("fedavg", method), **{kind: (TensorSpec(name="kept", shape=(numbers,)),)})
        for numbers in (1, 1 << 30)
    )
    require_affordable(small, method, EIGHT, SILO, small.declaration(method), "training")
    with pytest.raises(SettingsError, match="of memory here"):
        require_affordable(large, method, EIGHT, SILO, large.declaration(method), "training")


def test_without_a_policy_the_bound_is_a_part_of_what_the_container_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "CGROUPS", tmp_path)
    machine = usable_memory()
    (tmp_path / "memory.max").write_text("max\n")
    assert usable_memory() == machine
    (tmp_path / "memory.max").write_text("50000000\n")
    assert usable_memory() == 50_000_000
    with pytest.raises(SettingsError, match=r"at most 37.5 MB of memory here \(policy.most_memory_bytes\)"):
        require(SILO, Policy())


class RustPanic(BaseException):
    """As Polars' panics are: no Exception."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        pytest.param(MemoryError(), "expected enough memory for the settings", id="MemoryError"),
        pytest.param(KeyError("user-07"), "computation failed with KeyError", id="KeyError"),
        pytest.param(StopIteration(), "computation failed with RuntimeError", id="StopIteration"),
        pytest.param(RustPanic("user-07"), "computation failed with RuntimeError", id="RustPanic"),
    ],
)
async def test_a_run_that_ends_in_an_error_is_refused_and_the_next_one_is_done(
    federation: Federate, until: Until, monkeypatch: pytest.MonkeyPatch, capsys: Any, error: BaseException, told: str
) -> None:
    """Meanwhile the silo erases; what the error says, which may be an id, is repeated nowhere."""

    def fail(*_: object) -> None:
        raise error

    async with federation(2) as running:
        silo, other = await running.enter()
        with monkeypatch.context() as broken:
            broken.setattr(TrainingRun, "fit", fail)
            await running.start()
            await until(has_problem(silo, "run-1: "))
            await until(has_problem(other, "run-1: "))
            problem = (await read(silo, "status"))["problem"]
            assert told in problem and "continues with the next one" in problem and "user-07" not in problem
            assert (await silo.get("/health/live")).status_code == 200
        await running.operator.delete("/v1/runs/run-1")
        await running.start()
        await until(finished(silo, other, run="run-2"))
        assert (await read(silo, "status")).get("problem") is None
    assert "user-07" not in capsys.readouterr().err


@pytest.mark.parametrize("ends", ["the agent", "the model"])
async def test_an_erasure_is_done_without_the_agent_and_without_a_model(
    silos: Silos, tmp_path: Path, opened: Opened, until: Until, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    (shard,) = silos(1)
    settings = small_client(shard, tmp_path)
    keep_first_model(settings)
    if ends == "the agent":
        monkeypatch.setattr(Agent, "_step", fail_for_ever(MemoryError()))
    else:
        monkeypatch.setattr(ModelRenewal, "renew", fail)
    async with opened(settings) as http:
        await until(lambda: serves(http))
        await post(http, event("new", "item-00"))
        receipt = (await http.delete("/v1/users/user-01")).json()["receipt"]
        await until(lambda: is_erased(http, receipt))
        assert (await http.get("/health/live")).status_code == 200


def fail_for_ever(error: Exception) -> Callable[[Agent], Any]:
    async def step(agent: Agent) -> None:
        del agent
        raise error

    return step
