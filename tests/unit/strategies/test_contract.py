"""What every registered strategy must keep, whatever it does between fit and personalise.

A new strategy is covered as soon as it is in the registry. The client is a record in numpy: no torch, no data. One
strategy that is not in it uses all that travels beside a model.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aggregator_service.aggregation.bodies import pack_state, unpack_state
from shared.errors import ProtocolError
from shared.method.declaration import Declaration
from shared.method.node_settings import NodeSettings
from shared.method.parameters import Arrays, Float32, Parameters, Scalars, State, Update, digest_arrays
from shared.method.settings import MethodSettings
from shared.method.tensors import (
    Tensor,
    attention_specification,
    fusion_specification,
    initial_parameters,
    kernel_specification,
    mlp_specification,
    require_in_ranges,
    table_specification,
    unifilter_specification,
)
from shared.protocol.gate import pass_gate
from shared.protocol.masked_wire import declare_answer
from shared.protocol.wire import encode_body, open_parameters, require_content
from shared.strategies import STRATEGIES, build_strategy
from shared.strategies.fedmf import l2_penalty
from shared.strategies.fedprox import ProximalPenalty
from shared.strategies.fedpub import masks_and_distance
from shared.strategies.fedrap import AdditivePenalty, FedRAPSettings
from shared.strategies.local_client import PLAIN, FitInput, Objective, Shrinkage
from shared.strategies.strategy import Strategy
from tests.support import drifting

STEP = np.float32(0.0625)  # less than any strategy clips
METHOD = MethodSettings(
    width=2, layers=1, catalogue=5, learning_rate=float(STEP), nodes=NodeSettings(features=3, classes=2, order=2)
)
CLIENTS = ("ada", "bob", "cyd")
SHARES = {"ada": 0.3, "bob": 0.1, "cyd": 0.6}  # where in its range each client's scalar lies; every second one mirrored


MEASURED = {
    "divergence": (0.5,),
    "mean_margin": (0.25,),
    "losses_by_activity": (0.5, 0.75),
    "local_steps": (4.0,),
    "signature_low": (0.5, 0.5, 0.5, 0.25, 0.25, 0.25),
    "signature_high": (1.0, 0.0, 0.0, 0.0, 1.0, 0.0),
}
"""What a client measures here, by name: a new measure of MEASURES is one more line."""


class Still(np.random.Generator):
    """Noise that is none: what a strategy sends besides can then be held against what was trained."""

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        del loc, scale
        return np.zeros(size)

    def laplace(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        del loc, scale
        return np.zeros(size)


class FakeClient:
    """Keeps the verbs of a LocalClient, with what the strategy's model exchanges: training adds STEP to each number."""

    def __init__(self, strategy: Strategy, rho: float | None = 0.5, noisy: bool = False) -> None:
        self.own = initial_parameters(strategy.exchange(METHOD).tensors(METHOD), 9, exact=False)
        self.rho, self.noisy = rho, noisy
        self.told: list[Parameters | Objective] = []

    def load(self, received: Parameters) -> None:
        if others := received.arrays.keys() - self.own.keys():
            raise ProtocolError(f"expected parameters of this model, got {sorted(others)}")
        self.told.append(received)
        self.own |= {name: np.array(value) for name, value in received.arrays.items()}

    def train(self, objective: Objective = PLAIN) -> None:
        self.told.append(objective)
        self.own |= {name: value + STEP for name, value in self.own.items() if name.startswith(objective.only)}

    def sum_gradients(self) -> tuple[Arrays, int]:
        """Down by one in each number: a step by it, of whatever size, leads where training does."""
        return {name: np.full_like(value, -7.0) for name, value in self.own.items()}, 7

    def arrays(self) -> Arrays:
        return self.own

    def measure(self, name: str) -> tuple[float, ...]:
        return () if name == "divergence" and self.rho is None else MEASURED[name]

    def generator(self, purpose: str, *, once_a_run: bool = False) -> np.random.Generator:
        del purpose, once_a_run
        return np.random.default_rng(3) if self.noisy else Still(np.random.PCG64(3))


@pytest.fixture(params=[*sorted(STRATEGIES), drifting.NAME])
def strategy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Strategy:
    drifting.register_drifting(monkeypatch)
    return build_strategy(request.param, METHOD)


def declaration(strategy: Strategy) -> Declaration:
    return strategy.declaration(METHOD)


def start(strategy: Strategy) -> dict[str, Float32]:
    return initial_parameters(strategy.tensors(METHOD), 0, exact=False)


def received_first(strategy: Strategy) -> Parameters:
    """What every client is given where a run begins."""
    return strategy.common_answer(State(start(strategy)))


def scalars_of(strategy: Strategy, client: str) -> dict[str, float]:
    """A value within the range of every declared scalar."""
    values = {}
    for number, (name, scalar) in enumerate(strategy.scalars.items()):
        share = SHARES[client] if number % 2 == 0 else 1.0 - SHARES[client]
        values[name] = scalar.range.least + share * (scalar.range.most - scalar.range.least)
    return values


def returned(strategy: Strategy, scalars: Scalars) -> dict[str, float]:
    return {name: value for name, value in scalars.items() if strategy.scalars[name].returned}


def update(strategy: Strategy, client: str, seed: int, like: str = "") -> Update:
    """What a client would send: random numbers for every declared tensor and report, and the declared scalars, those
    of `like` where it is given."""
    arrays = initial_parameters(strategy.tensors(METHOD), seed, exact=False)
    arrays |= {spec.name: np.zeros(spec.shape, dtype=np.float32) for spec in strategy.reports}
    arrays = {name: value + np.float32(seed) for name, value in arrays.items()}
    return Update(client, arrays, scalars_of(strategy, like or client))


def different(strategy: Strategy) -> list[Update]:
    return [update(strategy, client, seed) for seed, client in enumerate(CLIENTS, start=1)]


def adopting(strategy: Strategy) -> Strategy:
    """The strategy without its step: what is said of the centre is then said of the state."""
    return replace(strategy, step=None)


def silence(strategy: Strategy) -> dict[str, Float32]:
    """The broadcasts before a step has made any."""
    return {spec.name: np.zeros(spec.shape, np.float32) for spec in strategy.broadcasts}


def answers(strategy: Strategy, state: State, updates: Sequence[Update]) -> list[tuple[str, dict[str, float]]]:
    """What each client and a newcomer would get, as digests and scalars: equal answers are equal to the bit."""
    given = [strategy.personalise(state, one) for one in [*updates, None]]
    return [(digest_arrays(answer.arrays), dict(answer.scalars)) for answer in given]


def test_the_registry_knows_each_strategy_by_its_own_name() -> None:
    assert {name: build(METHOD).name for name, build in STRATEGIES.items()} == {name: name for name in STRATEGIES}


def test_agreeing_clients_are_left_alone(strategy: Strategy) -> None:
    same = [update(strategy, client, 5, like="ada") for client in CLIENTS]
    state = adopting(strategy).aggregate(State(start(strategy)), same)
    shared = {name: value for name, value in same[0].arrays.items() if name in state.arrays}
    sent = (digest_arrays(shared | silence(strategy)), returned(strategy, same[0].scalars))
    assert answers(strategy, state, same) == [sent] * 4


def test_aggregating_and_personalising_change_none_of_their_inputs(strategy: Strategy) -> None:
    before, updates = State(start(strategy), {"margin": 0.9}, {"dan": {"rho": 0.3}}), different(strategy)
    copies = copy.deepcopy((before, updates))
    state = strategy.aggregate(before, updates)
    held = copy.deepcopy(state)
    for one in [*updates, None]:
        strategy.personalise(state, one)
    for old, new in ((copies[0], before), (held, state)):
        assert (digest_arrays(old.arrays), old.scalars, old.latest) == (
            digest_arrays(new.arrays),
            new.scalars,
            new.latest,
        )
    for old_update, new_update in zip(copies[1], updates, strict=True):
        assert (digest_arrays(old_update.arrays), old_update.scalars) == (
            digest_arrays(new_update.arrays),
            new_update.scalars,
        )


def test_the_order_in_which_updates_came_does_not_matter(strategy: Strategy) -> None:
    updates, before = different(strategy), State(start(strategy))
    expected = answers(strategy, strategy.aggregate(before, updates), updates)
    for order in permutations(updates):
        assert answers(strategy, strategy.aggregate(before, order), updates) == expected


def test_the_order_does_not_matter_either_where_a_sum_depends_on_it(strategy: Strategy) -> None:
    # In float64 (1e30 - 1e30) + 1 is 1, and (1e30 + 1) - 1e30 is 0.
    values, before = {"ada": 1e30, "bob": -1e30, "cyd": 1.0}, State(start(strategy))
    updates = [
        Update(one.client, {name: np.full_like(v, values[one.client]) for name, v in one.arrays.items()}, one.scalars)
        for one in different(strategy)
    ]
    found = {str(answers(strategy, strategy.aggregate(before, order), updates)) for order in permutations(updates)}
    assert len(found) == 1


def test_no_parameter_is_invented_or_dropped(strategy: Strategy) -> None:
    updates, declared = different(strategy), declaration(strategy)
    state = strategy.aggregate(State(start(strategy)), updates)
    given = [strategy.personalise(state, one).arrays for one in [*updates, None]]
    for specs, holding in ((declared.tensors, [state.arrays]), (declared.answered, given)):
        for arrays in holding:
            assert {name: value.shape for name, value in arrays.items()} == {spec.name: spec.shape for spec in specs}
            assert all(value.dtype == np.float32 for value in arrays.values())
    assert set(state.latest) == set(CLIENTS)


def test_no_scalar_but_the_declared_ones_comes_back(strategy: Strategy) -> None:
    updates = different(strategy)
    state = strategy.aggregate(State(start(strategy)), updates)
    assert all(set(strategy.personalise(state, one).scalars) <= set(strategy.scalars) for one in [*updates, None])


def test_a_client_of_an_earlier_round_is_remembered(strategy: Strategy) -> None:
    updates = different(strategy)
    first = strategy.aggregate(State(start(strategy)), updates[:2])
    second = strategy.aggregate(first, updates[2:])
    assert second.latest == {one.client: one.scalars for one in updates}


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("rho", [0.5, None])
def test_what_fit_returns_passes_the_gate(strategy: Strategy, rho: float | None, noisy: bool) -> None:
    declared = declaration(strategy)
    sent = strategy.fit_round(FakeClient(strategy, rho, noisy), received_first(strategy))
    assert pass_gate(declared, sent) == encode_body(sent)
    require_in_ranges(strategy.ranges, sent.scalars)


def test_what_fit_returns_was_trained_from_what_was_received(strategy: Strategy) -> None:
    """Or, where a strategy says that it sends something else, leads a federation of one client there."""
    received = start(strategy)
    trained = {name: value + STEP for name, value in received.items()}
    sent = strategy.fit_round(FakeClient(strategy), received_first(strategy))
    if strategy.reparametrised:
        after = strategy.aggregate(State(received), [Update("ada", sent.arrays, sent.scalars)]).arrays
        for name, value in trained.items():
            np.testing.assert_allclose(after[name], value, rtol=0, atol=float(STEP) / 1000)
    else:
        assert digest_arrays({name: sent.arrays[name] for name in received}) == digest_arrays(trained)


def test_what_a_client_remembers_is_what_was_declared(strategy: Strategy) -> None:
    client, received, memory = FakeClient(strategy), received_first(strategy), {}
    for _ in range(2):
        before = copy.deepcopy(memory)
        found = strategy.fit_round(client, received, memory)
        assert digest_arrays(memory) == digest_arrays(before)
        memory = found.memory
        assert {name: value.shape for name, value in memory.items()} == {
            spec.name: spec.shape for spec in strategy.client_memory
        }


def test_a_step_makes_every_broadcast(strategy: Strategy) -> None:
    state = strategy.aggregate(State(start(strategy)), different(strategy))
    assert {spec.name for spec in strategy.broadcasts} <= state.memory.keys()


def test_a_client_here_knows_every_measure_that_there_is() -> None:
    from client_service.models.nodes.unifilter import SIGNATURE_TAUS  # imports torch, which no other test here does
    from client_service.training.client_measures import MEASURES

    assert MEASURED.keys() == MEASURES.keys() | SIGNATURE_TAUS.keys()


MLPS, TABLE, KERNEL, FILTER = (
    spec(METHOD) for spec in (mlp_specification, table_specification, kernel_specification, unifilter_specification)
)
POOLING = tuple(tensor for tensor in MLPS if tensor.name.startswith("pooling."))
FIRST, THEN = Objective(loss="bce", only="embedding"), Objective(loss="bce", only="item.")
ADAPTED, SHRUNK = (
    Objective(loss="bce", only="adaptation."),
    Objective(loss="bce", shrinkage=Shrinkage(("fusion.weight", "fusion.bias"), 0.1)),
)
SENT_AND_TRAINED: dict[str, tuple[tuple[Tensor, ...], tuple[str, ...], tuple[Objective, ...]]] = {
    "lpsfed": (MLPS, ("margin", "rho"), (Objective(bias_aware=True),)),
    "fedavg": (MLPS, (), (PLAIN,)),
    "local": ((), (), (Objective(bias_aware=True),)),
    "fedprox": (MLPS, (), (Objective(penalty=ProximalPenalty(0.01)),)),
    "fedper": (POOLING, (), (PLAIN,)),
    "fedpub": (MLPS, (), (Objective(penalty=masks_and_distance),)),  # in every round, unlike in the paper
    "fedssp": (KERNEL, (), (PLAIN,)),  # no statistic of representations leaves, unlike in the paper
    "fedmf": (TABLE, (), (Objective(loss="bce", penalty=l2_penalty),)),
    "f2mf": (TABLE, ("lighter", "heavier"), (Objective(loss="bpr", penalty=l2_penalty),)),
    "pfedrec": (TABLE, (), (FIRST, THEN)),
    "fedrap": (TABLE, (), (Objective(loss="bce", penalty=AdditivePenalty(FedRAPSettings())),)),
    "fedpergnn": (TABLE, (), (Objective(loss="bpr"),)),
    "fedhgnn": (attention_specification(METHOD), (), (Objective(loss="bpr"),)),
    "fedutr": (fusion_specification(METHOD), (), (ADAPTED, SHRUNK)),
    "fedutr_sar": (fusion_specification(METHOD), (), (ADAPTED, SHRUNK)),
    "fedsgd": (MLPS, (), ()),
    "fedgsp": (FILTER, (), (PLAIN,)),
}
"""What leaves a client of each strategy - tensors and scalars - and what it trains for, once it has loaded."""


@pytest.mark.parametrize("name", SENT_AND_TRAINED)
def test_what_leaves_a_client_and_what_it_trains_for_are_as_published(name: str) -> None:
    strategy, (tensors, scalars, objectives) = build_strategy(name, METHOD), SENT_AND_TRAINED[name]
    declared = declaration(strategy)
    assert {spec.name: spec.shape for spec in declared.tensors} == {one.name: one.shape for one in tensors}
    assert (declared.strategy, declared.scalars) == (strategy.name, scalars)
    client, received = FakeClient(strategy), FitInput(start(strategy))
    strategy.fit(client, received)
    assert client.told == [received, *objectives]


PRIVATE = ("embedding", "embedding_bias", "personal", "tuned", "attention", "on_sum", "kernels", "log_alpha")
PRIVATE += ("local.weight", "local_known", "adaptation.own", "sparsity")
PRIVATE += ("user_table", "item_table", "preference", "mask.pooling.hidden.weight")


def test_nothing_of_a_user_is_ever_shared(strategy: Strategy) -> None:
    assert not any(strategy.shared(name) for name in PRIVATE)


def stored(folder: Path, name: str, arrays: Mapping[str, Float32], scalars: Scalars) -> Parameters:
    """The same content after its way through a file: arrays that are read when asked for."""
    (folder / name).write_bytes(encode_body(Parameters(arrays, scalars)))
    return open_parameters(folder / name)[1]


def test_a_state_that_was_saved_and_loaded_gives_the_same_answers(strategy: Strategy, tmp_path: Path) -> None:
    updates = different(strategy)
    state = strategy.aggregate(State(start(strategy)), updates)
    body = pack_state(state)
    loaded = stored(tmp_path, "state", body.arrays, body.scalars)
    latest = json.loads(json.dumps({client: dict(scalars) for client, scalars in state.latest.items()}))
    revived = unpack_state(loaded, latest)
    assert answers(strategy, revived, updates) == answers(strategy, state, updates)
    again = strategy.aggregate(revived, updates[:1])
    assert answers(strategy, again, updates) == answers(strategy, strategy.aggregate(state, updates[:1]), updates)


def test_updates_may_lie_on_disk(strategy: Strategy, tmp_path: Path) -> None:
    updates, before = different(strategy), State(start(strategy))
    lazy = []
    for one in updates:
        content = stored(tmp_path, one.client, one.arrays, one.scalars)
        lazy.append(Update(one.client, content.arrays, content.scalars))
    expected = answers(strategy, strategy.aggregate(before, updates), updates)
    assert answers(strategy, strategy.aggregate(before, lazy), lazy) == expected


def test_one_client_alone_gets_its_own_back(strategy: Strategy) -> None:
    only = different(strategy)[:1]
    state = adopting(strategy).aggregate(State(start(strategy)), only)
    answer = strategy.personalise(state, only[0])
    own = {name: only[0].arrays[name] for name in state.arrays}
    assert digest_arrays(answer.arrays) == digest_arrays(own | silence(strategy))
    assert dict(answer.scalars) == returned(strategy, only[0].scalars)


def test_a_step_to_where_the_state_is_changes_nothing(strategy: Strategy) -> None:
    before = State(start(strategy))
    reports = {spec.name: np.zeros(spec.shape, dtype=np.float32) for spec in strategy.reports}
    same = [Update(client, {**before.arrays, **reports}, scalars_of(strategy, client)) for client in CLIENTS]
    assert digest_arrays(strategy.aggregate(before, same).arrays) == digest_arrays(before.arrays)


def test_every_answer_can_travel(strategy: Strategy, tmp_path: Path) -> None:
    updates = different(strategy)
    state = strategy.aggregate(State(start(strategy)), updates)
    for one in [*updates, None]:
        (tmp_path / "answer").write_bytes(encode_body(strategy.personalise(state, one)))
        require_content(declare_answer(declaration(strategy)), *open_parameters(tmp_path / "answer"))
