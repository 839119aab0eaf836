"""What every sum of the registry must hold, open or masked, at a silo and in the aggregator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import sparse

from client_service.boundary.policy import Policy, allowed_declaration
from client_service.data.foreign_edges import ForeignEdges, build_foreign_edges
from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.data.node_graphs import UNKNOWN, UNLABELLED, NodeShard
from client_service.data.sessions import SessionShard
from client_service.sums.registry import SILO_SUMS, find_silo_sum
from client_service.sums.silo_sum import SiloSum, Statistics, SumRound, Sums
from client_service.sums.storage import load_basis, save_basis
from client_service.tasks import TASKS
from shared.errors import PrivacyError, ProtocolError, SettingsError
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, SumName, method_settings
from shared.protocol.gate import pass_gate
from shared.strategies import STRATEGIES, build_strategy, strategy_of_part
from shared.strategies.sum_strategy import declare_sums, sum_strategy
from shared.sums import NOISED, SUMS, find_declared, list_sums
from shared.sums.common_items import HELD, count_common
from shared.sums.common_items import ITEMS as ITEM_LIST
from shared.sums.content import CONTENT, FORMS
from shared.sums.content import ITEMS as CONTENT_ITEMS
from shared.sums.node_borders import TABLE
from shared.sums.node_gram import RIGHT, SQUARE, gram_number_format
from shared.sums.sum import LIMIT, Sum, decode_fixed, encode_fixed

ITEMS, SILOS = 24, 3
GRAM = (SQUARE, RIGHT)
CASES: dict[str, dict[str, Any]] = {  # settings of `basis`; each sum is here at least once
    "items": {"kind": "items", "buckets": 1 << 12},
    "content": {"kind": "content"},
    "exact": {"kind": "exact", "least_pairs": 2},
    "exact, noised": {"kind": "exact", "epsilon": 8.0},
    "iterated": {"kind": "iterated", "rank": 4, "rounds": 3},
    "iterated, all rounds": {"kind": "iterated", "rank": 4, "rounds": 3, "words": 3},
    "transitions": {"kind": "transitions", "least_pairs": 2},
    "node_borders": {"kind": "node_borders"},
    "node_directions": {"kind": "node_directions", "least_pairs": 2},
    "node_gram": {"kind": "node_gram", "least_pairs": 1},  # more would be left out of single parts
    "node_gram, projected": {"kind": "node_gram", "least_pairs": 1},
}
NODES: dict[str, dict[str, Any]] = {  # settings of nodes, where they are not the ones without a projection
    "node_borders": {"border_numbers": 1 << 12},
    "node_directions": {"directions": 8},
    "node_gram, projected": {"directions": 8},
}


def item_shards() -> tuple[list[Shard], Shard]:
    """Silos of users with all items of a catalogue, and the same users in one silo."""
    generator = np.random.default_rng(3)
    drawn = [sparse.csr_array((generator.random((20, ITEMS)) < 0.3).astype(float)) for _ in range(SILOS)]

    def shard(name: str, train: sparse.csr_array) -> Shard:
        none = sparse.csr_array(train.shape)
        users, items = ([f"{place:03}" for place in range(size)] for size in train.shape)
        found = build_shard_from_matrices(name, users, items, (train, none, none), np.arange(ITEMS))
        return replace(found, titles=tuple(f"the {one} of kind {place % 5}" for place, one in enumerate(items)))

    parts = [shard(f"silo-{place}", matrix) for place, matrix in enumerate(drawn)]
    return parts, shard("pooled", sparse.csr_array(sparse.vstack(drawn)))


def session_shards() -> tuple[list[SessionShard], SessionShard]:
    """Silos of visits to all items of a catalogue, and the same visits in one silo."""
    generator = np.random.default_rng(2)
    drawn = [generator.integers(0, ITEMS, 200) for _ in range(SILOS)]

    def shard(clicks: NDArray[np.int64]) -> SessionShard:
        starts, places = np.arange(0, len(clicks) + 1, 4), np.arange(ITEMS)
        train = np.zeros(len(starts) - 1, np.int8)
        return SessionShard("shop", [f"{one:02}" for one in places], clicks, starts, train, places)

    return [shard(clicks) for clicks in drawn], shard(np.concatenate(drawn))


def node_shards() -> tuple[list[NodeShard], NodeShard]:
    """Silos of nodes with features, and the same nodes and edges in one silo.

    Each silo has five neighbours of each node of the others too.
    """
    generator, size = np.random.default_rng(4), 30
    features = (generator.random((SILOS * size, ITEMS)) < 0.4).astype(np.float32)
    labels = features[:, :3].argmax(1)
    blocks = [np.triu(generator.random((size, size)) < 0.2, 1) for _ in range(SILOS)]
    edges = sparse.block_diag(blocks).astype(np.float32)
    splits = np.tile(np.arange(size) % 4, SILOS).astype(np.int8)

    ids = [f"{one:03}" for one in range(SILOS * size)]

    def list_foreign(rows: slice) -> ForeignEdges | None:
        others = [one for one in ids if one not in ids[rows]]
        near = [(row, one) for row in range(len(ids[rows])) for one in others if row < 5 or int(one) % size < 5]
        own, weights = np.array([row for row, _ in near], np.int64), np.ones(len(near), np.float32)
        return build_foreign_edges(own, [one for _, one in near], weights, len(ids[rows]))

    def shard(name: str, rows: slice) -> NodeShard:
        own = splits[rows]
        return NodeShard(
            name,
            ids[rows],
            sparse.csr_array(features[rows]),
            [f"f{one:02}" for one in range(ITEMS)],
            sparse.csr_array((edges + edges.T).tocsr()[rows, rows]),
            np.where(own == UNLABELLED, UNKNOWN, labels[rows]),
            ("a", "b", "c"),
            own,
            foreign=list_foreign(rows),
        )

    parts = [shard(f"silo-{one}", slice(one * size, (one + 1) * size)) for one in range(SILOS)]
    return parts, shard("pooled", slice(0, SILOS * size))


SHARDS: dict[str, Callable[[], tuple[list[Any], Any]]] = {
    "items": item_shards,
    "sessions": session_shards,
    "nodes": node_shards,
}
"""By a sum's task."""


class Given:
    """A sum with settings, and silos whose parts it adds."""

    def __init__(self, name: str) -> None:
        said = {f"basis.{field}": value for field, value in CASES[name].items()}
        sizes = {"features": ITEMS, "classes": 3, "hops": 2, "directions": 64, "random_features": 5}
        nodes = {f"nodes.{field}": value for field, value in {**sizes, **NODES.get(name, {})}.items()}
        self.method: MethodSettings = method_settings(catalogue=ITEMS, **said, **nodes)
        self.silo_sum: SiloSum = SILO_SUMS[self.method.basis.kind]
        self.sum: Sum = self.silo_sum.declared
        self.parts, self.pooled = SHARDS[self.silo_sum.task]()

    def at(self, shard: Any, number: int, sums: Mapping[int, Sums]) -> SumRound:
        counted = self.silo_sum.count(shard, self.method)
        return SumRound(counted, self.method, 5, SILOS, number, sums, over=self.over)

    @cached_property
    def over(self) -> Statistics | None:
        """What the sum counts over."""
        part = self.sum.base_part(self.method)
        if part is None:
            return None
        first = Given(next(name for name, case in CASES.items() if SUMS[case["kind"]].part == part))
        return first.finish(first.run())

    def add(self, shard: Any, number: int, sums: Mapping[int, Sums]) -> Sums:
        return self.silo_sum.add(self.at(shard, number, sums))

    def run(self) -> dict[int, Sums]:
        """The sums of every round as they are handed out; where there is noise, with a variance of it."""
        sums: dict[int, Sums] = {}
        for number in range(1, self.sum.rounds(self.method.basis) + 1):
            total = added([self.add(shard, number, sums) for shard in self.parts])
            if self.sum.noise is not None and self.sum.noise.variance in total:
                total[self.sum.noise.variance] = np.ones(1, np.uint32)
            sums[number] = dict(self.sum.hand_out(self.method, total))
        return sums

    def finish(self, sums: Mapping[int, Sums]) -> Statistics:
        return self.silo_sum.finish(self.at(self.parts[0], max(sums), sums))


def added(parts: Sequence[Sums]) -> Sums:
    """Modulo 2^32."""
    return {name: np.sum([part[name] for part in parts], axis=0, dtype=np.uint32) for name in parts[0]}


@pytest.fixture(params=CASES)
def given(request: pytest.FixtureRequest) -> Given:
    return Given(request.param)


def test_both_halves_and_the_setting_have_the_same_names_and_each_is_tried_here() -> None:
    assert get_args(SumName) == ("off", *SUMS) and list(SILO_SUMS) == list(SUMS)
    assert {case["kind"] for case in CASES.values()} == set(SUMS)
    for name, silo_sum in SILO_SUMS.items():
        assert silo_sum.declared is SUMS[name] and silo_sum.task in TASKS
    own = [one.own_names for one in SUMS.values()]
    assert len(frozenset().union(*own)) == sum(map(len, own))
    assert not {one.word for one in SUMS.values()} & set(STRATEGIES)


def test_no_sum_leaves_a_silo_whose_policy_does_not_say_its_word(given: Given) -> None:
    word, strategy = given.sum.word, build_strategy("lpsfed", given.method)
    assert Policy.model_fields[word].default == "no"
    noised = given.method.basis.epsilon is not None
    others = {SUMS[one.kind].word: "open" for one in list_sums(given.method).values()}  # over which it is counted
    enough = {"open", "secure", *(("noised",) if noised else ())}
    for said in ("no", "noised", "secure", "open"):
        policy = Policy.model_validate({**others, word: said})
        if said in enough:
            declared = allowed_declaration(strategy, given.method, policy, secure=True).of_part(given.sum.part)
            assert declared.strategy == word and declared.secure
        else:
            with pytest.raises(PrivacyError, match=f"^policy: expected {word} = 'secure' or 'open' .* got '{said}'"):
                allowed_declaration(strategy, given.method, policy, secure=True)
        if said != "open" and not noised:
            with pytest.raises(PrivacyError, match=f"^policy: expected {word} = 'open', because nothing is masked"):
                allowed_declaration(strategy, given.method, policy, secure=False)


def test_what_is_declared_follows_from_the_sizes_and_says_them(given: Given) -> None:
    declared = declare_sums(given.method)[given.sum.part]
    assert find_declared(declared) is given.sum
    assert declared.scalars == () and all(spec.dtype == "U32" for spec in declared.tensors)
    shapes = {spec.name: spec.shape for spec in declared.tensors}
    sizes = given.sum.sizes(given.method.basis.model_copy(), shapes)
    if not given.sum.listed:
        assert sizes == {}, "buckets and encoder are the usual ones, or asked for by name"
        return
    assert sizes["catalogue"] == ITEMS
    with pytest.raises(SettingsError, match=r"^catalogue: expected the size"):
        declare_sums(given.method.model_copy(update={"catalogue": 0}))
    assert not strategy_of_part(given.sum.part, "lpsfed", given.method).shares_items(given.method)


def test_what_is_computed_is_what_was_declared_and_passes_the_gate(given: Given) -> None:
    declared, sums = declare_sums(given.method)[given.sum.part], given.run()
    expected = {spec.name: spec.shape for spec in declared.tensors}
    for number in sums:
        part = given.add(given.parts[0], number, {before: sums[before] for before in range(1, number)})
        assert {name: value.shape for name, value in part.items()} == expected
        assert all(value.dtype == np.uint32 for value in part.values())
        pass_gate(declared, Parameters(part))
    first = min(part)
    for wrong in ({name: part[name] for name in part if name != first}, {**part, "another": part[first]}):
        with pytest.raises(PrivacyError, match=r"expected \d declared tensors"):
            pass_gate(declared, Parameters(wrong))


def test_parts_add_up_to_what_one_silo_with_all_data_would_add(given: Given) -> None:
    total = added([given.add(shard, 1, {}) for shard in given.parts])
    for name, pooled in given.add(given.pooled, 1, {}).items():
        if name == HELD:  # not one silo but several hold a bucket
            np.testing.assert_array_equal(np.minimum(total[name], 1), pooled)
            continue
        if name == TABLE:  # one silo with all data has no borders, and each claim is in one part
            assert not pooled.any() and np.count_nonzero(total[name]) > 0
            continue
        if given.sum.part == CONTENT:
            times = len(given.parts) if name == CONTENT_ITEMS else 1  # each silo has all items
            whole = times * FORMS[name].decode(pooled)
            np.testing.assert_allclose(FORMS[name].decode(total[name]), whole, rtol=1e-8, atol=2e-6)
            continue
        if name in GRAM:
            form = gram_number_format(given.method.nodes)
            np.testing.assert_allclose(form.decode(total[name]), form.decode(pooled), atol=1e-4)  # float32 designs
            continue
        off = np.abs((total[name] - pooled).view(np.int32))  # each part is rounded by half a step
        assert off.max() <= ((SILOS + 1) / 2 if name in given.sum.fraction_bits else 0)


def test_statistics_are_finite_alike_everywhere_and_the_same_from_the_disk(given: Given, tmp_path: Path) -> None:
    sums = given.run()
    found = given.finish(sums)
    common = count_common(sums[max(sums)]).items if given.sum.part == ITEM_LIST else ITEMS
    nodes = given.method.nodes
    sizes = {"content": 65, "node_directions": 1, "node_gram": nodes.columns, "node_borders": nodes.border_numbers}
    assert found.size == sizes.get(given.sum.name, common) > 0 and found.arrays()
    assert all(np.isfinite(value).all() for value in found.arrays().values())
    others = given.silo_sum.finish(given.at(given.parts[1], max(sums), sums))
    save_basis(tmp_path, "run-1", found)
    kept = load_basis(tmp_path, found.digest)
    assert kept is not None and kept.digest == others.digest == found.digest


def test_a_run_needs_no_earlier_sums_than_it_says(given: Given) -> None:
    """What is kept of the sums at the aggregator is enough for the statistics."""
    basis, sums = given.method.basis, given.run()
    needed = range(len(sums) - given.sum.sums_needed(basis) + 1, len(sums) + 1)
    assert given.finish({number: sums[number] for number in needed}).digest == given.finish(sums).digest


def test_the_ring_holds_the_largest_sum_and_a_sum_beyond_it_is_refused(given: Given) -> None:
    sums = given.run()
    for name in given.sum.fraction_bits:
        most = np.array([np.nextafter(LIMIT / SILOS, 0.0), -np.nextafter(LIMIT / SILOS, 0.0)])
        part = encode_fixed(most * (1 - 1e-9), SILOS, name)
        np.testing.assert_allclose(decode_fixed(added([{name: part}] * SILOS)[name]), most * SILOS, rtol=1e-6)
        with pytest.raises(ProtocolError, match=f"^{name}: expected values below"):
            encode_fixed(most * 1.01, SILOS, name)
    wrapped = {name: np.full_like(value, 2**32 - 1) for name, value in sums[max(sums)].items()}
    with pytest.raises(ProtocolError):
        given.finish({**sums, max(sums): wrapped})


def test_noise_hides_one_user_and_what_has_none_refuses_it(given: Given) -> None:
    noise, basis = given.sum.noise, given.method.basis
    if noise is None:
        with pytest.raises(SettingsError, match=f"^basis.epsilon: expected none with basis.kind = '{given.sum.name}'"):
            declare_sums(given.method.model_copy(update={"basis": basis.model_copy(update={"epsilon": 1.0})}))
        return
    assert noise.tensor in NOISED
    if basis.epsilon is not None:
        size = given.add(given.parts[0], 1, {})[noise.tensor].size
        deviations = noise.deviations(size, 2.0)
        assert deviations.shape == (size,) and (deviations > 0).all() and deviations.max() == 2.0


def test_digests_are_the_same_as_long_as_what_is_counted_is(given: Given) -> None:
    again = SHARDS[given.silo_sum.task]()[0]
    digests = [given.silo_sum.digests(shard, given.method).training for shard in given.parts]
    assert [given.silo_sum.digests(shard, given.method).training for shard in again] == digests and len(
        {*digests}
    ) == SILOS


def test_a_sum_is_of_one_tasks_data(given: Given) -> None:
    assert find_silo_sum(given.method, given.silo_sum.task) is given.silo_sum
    for other in {*TASKS} - {given.silo_sum.task}:
        with pytest.raises(SettingsError, match=f"^method.basis: expected 'off' with task '{other}'"):
            find_silo_sum(given.method, other)
    assert sum_strategy(given.method).name == given.sum.word
