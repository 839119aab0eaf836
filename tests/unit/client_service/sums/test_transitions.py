"""The sum of transitions: what it counts, what is handed out of it, and what a silo reads in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from client_service.data.prefixes import Prefixes
from client_service.data.sessions import SessionShard
from client_service.evaluation.session_ranking import measure_prefixes, rank_targets
from client_service.sums.silo_sum import SumRound, Sums
from client_service.sums.transitions import (
    Transitions,
    count_transitions,
    finish_transitions,
    own_transitions,
    shard_transitions,
    warn_of_rare_visits,
)
from client_service.training.transition_scores import (
    TransitionScores,
    network_share,
    score_by_transitions,
    score_visits,
)
from shared.errors import SettingsError
from shared.method.settings import MethodSettings, method_settings
from shared.protocol.signing.invitation import FederationOut
from shared.sums.transitions import (
    COUNTS,
    ROWS,
    SKETCH,
    UNIT,
    VISITS,
    WEIGHTS,
    count_stray_pairs,
    hide_rare_transitions,
    transition_sizes,
    transition_tensors,
)
from simulation.joining.consent import describe_terms
from simulation.joining.own_data import OWN_DATA
from simulation.joining.silo_toml import apply_policy, needs_open_sums
from simulation.sessions.cut import CUTS, divide_sessions
from simulation.sessions.generator import generate_sessions


def shard_of(*visits: list[int], items: int = 40, places: np.ndarray | None = None) -> SessionShard:
    """Training visits over so many items."""
    starts = np.concatenate([[0], np.cumsum([len(one) for one in visits])])
    ids = [f"{one:02}" for one in range(items)]
    splits = np.zeros(len(visits), np.int8)
    own = np.arange(items) if places is None else places
    return SessionShard("shop", ids, np.concatenate(visits).astype(np.int64), starts, splits, own)


def settings(items: int = 40, least: int = 1, counters: int | None = None) -> MethodSettings:
    said: dict[str, object] = {"basis.kind": "transitions", "basis.least_pairs": least}
    said |= {} if counters is None else {"basis.counters": counters}
    return method_settings(catalogue=items, **said)


def handed_out(parts: list[Sums], method: MethodSettings) -> Transitions:
    total = {name: np.sum([part[name] for part in parts], axis=0, dtype=np.uint32) for name in parts[0]}
    return finish_transitions(SumRound(None, method, 0, 3, 1, {1: dict(hide_rare_transitions(method, total))}))


def planted(silos: int, items: int = 60) -> list[SessionShard]:
    """Silos of one chain of clicks."""
    sessions = generate_sessions(3, sessions=1200, items=items)
    return divide_sessions(sessions, CUTS["random"](sessions, silos, 0))


def test_a_visit_adds_a_pair_once_by_its_nearest_clicks() -> None:
    found = count_transitions(shard_of([1, 2, 3, 1, 2, 4, 5]), settings())[COUNTS]
    assert found[1, 2] == UNIT  # twice next to each other, and once three clicks apart
    _, second, third = WEIGHTS
    assert found[1, 3] == second and found[3, 2] == second and found[1, 1] == third
    assert found[1, 5] == third and found[3, 5] == 0  # further than three clicks
    assert found[5, 4] == 0  # the order counts


def test_what_fewer_visits_have_is_handed_out_as_nothing_and_a_visit_repeats_nothing_into_the_light() -> None:
    method = settings(least=3)
    parts = [
        count_transitions(shard_of([1, 2] * 5, [6, 7]), method),
        count_transitions(shard_of([6, 7], [6, 7]), method),
    ]
    found = handed_out(parts, method)
    assert found.counts is not None
    assert found.counts[1, 2] == 0 and found.counts[6, 7] == 3 * UNIT and found.visits[[1, 6]].tolist() == [0, 3]


@pytest.mark.parametrize("counters", [None, 1 << 8])
def test_the_federated_sum_is_that_of_the_pooled_visits(counters: int | None) -> None:
    items = 60
    method, [pooled] = settings(items, counters=counters), planted(1, items)
    parts, whole = [count_transitions(one, method) for one in planted(4, items)], count_transitions(pooled, method)
    assert (SKETCH in whole) == (counters is not None)
    for name, value in whole.items():
        assert np.array_equal(np.sum([part[name] for part in parts], axis=0), value)


def test_a_sketch_is_never_below_the_counts_and_equals_them_where_it_has_room() -> None:
    items = 100
    [shard] = planted(1, items)
    true = own_transitions(shard).toarray()
    narrow, wide = (settings(items, counters=counters) for counters in (1 << 9, 1 << 10))
    off = []
    for method in (narrow, wide):
        found = handed_out([count_transitions(shard, method)], method)
        assert found.sketch is not None and found.sketch.shape == (ROWS, method.basis.counters)
        nobody = SessionShard(**{**vars_of(shard), "splits": np.full(len(shard.splits), 2, np.int8)})
        read = shard_transitions(found, nobody).toarray()  # without counts of its own
        assert (read >= true).all()
        off.append(float((read != true).mean()))
    assert off[1] < off[0]
    exact = settings(items)
    found = handed_out([count_transitions(shard, exact)], exact)
    assert np.array_equal(shard_transitions(found, shard).toarray(), true)


def vars_of(shard: SessionShard) -> dict[str, object]:
    names = ("name", "item_ids", "clicks", "starts", "splits", "places")
    return {name: getattr(shard, name) for name in names}


def test_a_silo_reads_its_own_items_and_keeps_its_own_rare_pairs() -> None:
    places = np.array([3, 7, 11])
    method = settings(least=3)
    own = shard_of([0, 1], [1, 2], items=3, places=places)
    others = shard_of([3, 7], [3, 7], [11, 3], [20, 21])
    found = handed_out([count_transitions(one, method) for one in (own, others)], method)
    read = shard_transitions(found, own).toarray()
    assert read[0, 1] == 3 * UNIT and read[1, 2] == UNIT and read[2, 0] == 0


def test_a_catalogue_has_as_many_counters_as_its_size_asks_for_and_what_is_declared_says_it() -> None:
    for items, asked, shape in (
        (2048, None, None),
        (16_491, None, 1 << 19),
        (42_922, None, 1 << 21),
        (9_000, 1 << 10, 1 << 10),
    ):
        method = settings(items, counters=asked)
        shapes = {one.name: one.shape for one in transition_tensors(method)}
        assert shapes.get(SKETCH, (ROWS, None))[1] == shape and (COUNTS in shapes) == (shape is None)
        found = transition_sizes(method_settings(**{"basis.kind": "transitions"}).basis, shapes)
        assert found["catalogue"] == items and found.get("basis.counters") == asked


@pytest.mark.parametrize(("counters", "least"), [(1 << 12, 1), (1 << 10, 3)])
def test_the_pairs_that_a_full_sketch_tells_of_no_visit_are_as_many_as_its_formula_says(
    counters: int, least: int
) -> None:
    items, visits = 500, 8
    generator = np.random.default_rng(5)
    pairs = generator.integers(items, size=(items * visits, 2))
    shard = shard_of(*pairs.tolist(), items=items)
    method = settings(items, least, counters)
    found = handed_out([count_transitions(shard, method)], method)
    nobody = SessionShard(**{**vars_of(shard), "splits": np.full(len(shard.splits), 2, np.int8)})
    read, true = shard_transitions(found, nobody).toarray() > 0, own_transitions(shard).toarray() > 0
    strays = float((read & ~true).sum() / items)
    assert strays == pytest.approx(count_stray_pairs(items, counters, least, visits), rel=0.35) and strays > 0.5


def test_a_silo_is_warned_of_a_list_that_its_counters_are_too_few_for() -> None:
    def warned(items: int, least: int, counters: int | None = None) -> bool:
        return any("counters are too few" in one for one in warn_of_rare_visits(settings(items, least, counters)))

    assert not any(warned(items, least) for items, least in ((2_000, 1), (16_491, 1), (42_922, 1), (140_000, 3)))
    assert warned(200_000, 1) and warned(500_000, 3) and warned(42_922, 3, 1 << 16)


def test_counters_are_a_power_of_two() -> None:
    with pytest.raises(SettingsError, match=r"basis.counters: .*power of two"):
        settings(counters=1000)


def test_scores_are_probabilities_and_visits_of_others_help_a_small_silo() -> None:
    shards = planted(6, 300)
    method = settings(300)
    known = handed_out([count_transitions(one, method) for one in shards], method)
    found = []
    for shard in shards:
        alone, together = score_by_transitions(shard, None), score_by_transitions(shard, known)
        scores = together.score(shard.test)
        np.testing.assert_allclose(scores.sum(axis=1), 1.0, rtol=1e-5)
        assert (scores >= 0).all()
        values = [measure_prefixes(one.score, shard.test, len(shard.item_ids)).values for one in (alone, together)]
        found.append([one["mrr20"] for one in values])
    alone_, together_ = np.mean(found, axis=0)
    assert together_ > 1.05 * alone_, found


def test_the_weight_of_a_network_follows_validation_and_is_none_where_nothing_speaks_for_it() -> None:
    [shard] = planted(1)
    known = score_by_transitions(shard, None)

    drawn = np.random.default_rng(0).random(60, dtype=np.float32)

    def nothing(examples):  # type: ignore[no-untyped-def]
        return np.broadcast_to(drawn / drawn.sum(), (len(examples), 60))

    examples = len(shard.valid)
    assert network_share(shard, nothing, known.score) == 0.0  # useless
    assert 0.3 < network_share(shard, known.score, nothing) < 0.95  # better by far, and drawn to one half
    few = SessionShard(**{**vars_of(shard), "splits": np.zeros(len(shard.splits), np.int8)})
    assert len(few.valid) == 0 < examples
    assert network_share(few, nothing, known.score) == 0.0  # nothing speaks for it
    assert isinstance(score_by_transitions(few, None), TransitionScores)


@pytest.mark.parametrize("second", [0.0, 0.3])
def test_ranks_without_the_scores_of_all_items_are_those_of_the_scores(second: float) -> None:
    shard = planted(8)[0]
    found = replace(score_by_transitions(shard, None), second=second)
    for examples in (shard.train, shard.test):
        assert np.array_equal(found.rank(examples), rank_targets(found.score(examples), examples.targets))
    drawn = np.random.default_rng(3).integers(60, size=2000)  # clicks that nothing tells of, and targets among these
    strange = Prefixes(drawn, np.arange(0, 1990, 10), np.arange(3, 1993, 10))
    assert np.array_equal(found.rank(strange), rank_targets(found.score(strange), strange.targets))


def test_a_silo_whose_visits_go_another_way_than_the_others_is_served_by_its_own_transitions() -> None:
    items, generator = 40, np.random.default_rng(1)

    def walk_visits(step: int, visits: int) -> SessionShard:
        """Visits that go on by `step` items, four clicks each, the last third of them validation."""
        begin = generator.integers(items, size=visits)
        shard = shard_of(*(list((one + step * np.arange(4)) % items) for one in begin), items=items)
        splits = np.where(np.arange(visits) < 2 * visits // 3, 0, 1).astype(np.int8)
        return SessionShard(**{**vars_of(shard), "splits": splits})

    method, odd, others = settings(items), walk_visits(3, 300), [walk_visits(7, 3000) for _ in range(2)]
    known = handed_out([count_transitions(one, method) for one in (odd, *others)], method)
    found = score_visits(odd, known)
    assert found.share == 0.0 and np.array_equal(found.score(odd.valid), found.own.score(odd.valid))
    alike = score_visits(others[0], known)
    assert alike.share == 1.0 and alike.summed is not None
    assert np.array_equal(alike.score(odd.valid), alike.summed.score(odd.valid))


def test_what_goes_with_neighbours_of_a_click_comes_before_what_is_only_popular() -> None:
    shard = shard_of([0, 1], [1, 2], [1, 2], *([5, 6] for _ in range(9)), items=7)
    scores = score_by_transitions(shard, None).score(shard_of([0, 3], items=7).train)[0]
    assert scores[1] > scores[2] > scores[6]  # 2 never met 0


def test_a_visit_that_nobody_knows_gets_popular_items() -> None:
    shard = shard_of([1, 2], [1, 3], [1, 2], items=5)
    found = score_by_transitions(shard, None)
    assert isinstance(found.near, sparse.csr_array)
    scores = found.score(shard_of([4, 0], items=5).train)
    assert scores[0].argmax() in (1, 4)  # what is popular, or the click itself
    assert VISITS in count_transitions(shard, settings(5))


@pytest.mark.parametrize("items", [60, 5000])
def test_a_silo_that_joins_is_told_what_would_leave_and_agrees_by_its_own_word(items: int) -> None:
    method = method_settings("sessions", **{"basis.kind": "transitions", "catalogue": items})
    federation = FederationOut(strategy="fedavg", task="sessions", secure=True, method=method)
    told = "\n".join(describe_terms("shop", federation))
    assert "how many of its visits have each item" in told and "how many click one item soon after another" in told
    assert "pairs that fewer than 3 visits have are left out" in told
    agreed = apply_policy(federation, {"strategies": ["fedavg"], "item_tables": True})
    assert agreed.missing == {"transitions": "secure"} and not needs_open_sums(agreed.missing)
    assert "visits" in OWN_DATA["sessions"].gain(Path("nowhere"), 3)
