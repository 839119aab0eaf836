"""Cut changes, medians, trimmed means and Krum, each against numbers made by hand or by plain numpy."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest

from shared.errors import SettingsError
from shared.method.node_settings import NodeSettings
from shared.method.parameters import Float32, State, Update, digest_arrays
from shared.method.settings import MethodSettings, method_settings
from shared.strategies import STRATEGIES, build_strategy, robust_aggregation
from shared.strategies.aggregation import mean_of_updates
from shared.strategies.robust_aggregation import (
    aggregate_robustly,
    clip_updates,
    find_far_clients,
    krum,
    krum_scores,
    least_updates,
    median,
    squared_distances,
    trimmed_mean,
    update_distances,
)

NAMES = ("ada", "bob", "cyd", "dan", "eve")
START = State({"b": np.zeros(2, np.float32), "w": np.ones((2, 3), np.float32)}, {}, {"zoe": {"rho": 0.5}})


def update(client: str, bias: list[float], weight: float, **scalars: float) -> Update:
    arrays = {"b": np.array(bias, np.float32), "w": np.full((2, 3), weight, np.float32)}
    return Update(client, arrays, scalars)


def drawn(seed: int = 0) -> list[Update]:
    """Five updates of random numbers."""
    generator = np.random.default_rng(seed)
    made = {
        client: {n: generator.standard_normal(v.shape).astype(np.float32) for n, v in START.arrays.items()}
        for client in NAMES
    }
    return [Update(client, arrays, {"margin": float(generator.random())}) for client, arrays in made.items()]


def stack(updates: list[Update], name: str) -> Float32:
    return np.stack([one.arrays[name] for one in updates])


def test_a_distance_is_the_length_of_the_whole_change_over_all_tensors() -> None:
    # (3, 4) from (0, 0) is 5; six times 2 - 1 is sqrt 6.
    assert update_distances(START, [update("ada", [3.0, 4.0], 2.0)]) == {"ada": pytest.approx(np.sqrt(25 + 6))}


def test_who_is_further_than_so_many_times_the_median_is_told_with_how_many_times() -> None:
    found = {"ada": 1.0, "bob": 2.0, "cyd": 2.0, "dan": 3.0, "eve": 9.0}
    assert find_far_clients(found, 4.0) == {"eve": 4.5}
    assert find_far_clients(found, 4.5) == {}  # as far as allowed is not further
    assert find_far_clients({"ada": 0.0, "bob": 0.0, "cyd": 7.0}, 2.0) == find_far_clients({}, 2.0) == {}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_at_twice_the_median_and_above_there_are_always_some_left(count: int) -> None:
    found = {name: 10.0**index for index, name in enumerate(NAMES[:count])}
    assert len(find_far_clients(found, 2.0)) <= count // 2


def test_a_change_is_cut_to_so_many_times_the_median_along_its_own_direction() -> None:
    updates = [update("ada", [1.0, 0.0], 1.0), update("bob", [0.0, 1.0], 1.0), update("eve", [30.0, 40.0], 1.0)]
    cut = clip_updates(START, updates, 2.0)
    assert cut[0] is updates[0] and cut[1] is updates[1]
    np.testing.assert_allclose(cut[2].arrays["b"], [1.2, 1.6], rtol=1e-6)  # 2 long, as (3, 4) points
    np.testing.assert_array_equal(cut[2].arrays["w"], START.arrays["w"])  # what did not move does not
    assert (cut[2].client, cut[2].scalars) == (updates[2].client, updates[2].scalars)
    assert list(cut[2].arrays) == ["b", "w"] and len(cut[2].arrays) == 2


def test_where_most_have_changed_nothing_the_others_are_cut_to_nothing() -> None:
    updates = [update("ada", [0.0, 0.0], 1.0), update("bob", [0.0, 0.0], 1.0), update("eve", [5.0, 0.0], 1.0)]
    assert digest_arrays(clip_updates(START, updates, 3.0)[2].arrays) == digest_arrays(START.arrays)


def test_cutting_is_pure_and_of_float32() -> None:
    updates = [*drawn()[:4], update("eve", [1e30, 0.0], 1.0)]
    before = [digest_arrays(one.arrays) for one in updates]
    cut = clip_updates(START, updates, 1.0)
    assert [digest_arrays(one.arrays) for one in updates] == before
    assert all(value.dtype == np.float32 for one in cut for value in one.arrays.values())
    longest = max(update_distances(START, cut).values())
    assert longest == pytest.approx(np.median(list(update_distances(START, updates).values())), rel=1e-5)


@pytest.mark.parametrize("count", [4, 5])
def test_a_median_is_numpy_s_of_each_coordinate_and_of_each_scalar(count: int) -> None:
    updates = drawn()[:count]
    found = median(START, updates)
    for name in START.arrays:
        expected = np.median(stack(updates, name).astype(np.float64), axis=0).astype(np.float32)
        np.testing.assert_array_equal(found.arrays[name], expected)
    assert found.scalars == {"margin": np.median([one.scalars["margin"] for one in updates])}


def test_a_trimmed_mean_leaves_out_the_least_and_the_greatest_of_each_coordinate() -> None:
    weights = {"ada": -9.0, "bob": 1.0, "cyd": 2.0, "dan": 6.0, "eve": 1e9}
    updates = [update(client, [weight, -weight], weight, margin=weight) for client, weight in weights.items()]
    found = trimmed_mean(START, updates, trim=1)
    np.testing.assert_array_equal(found.arrays["b"], [3.0, -3.0])  # (1 + 2 + 6) / 3
    np.testing.assert_array_equal(found.arrays["w"], np.full((2, 3), 3.0))
    assert found.scalars == {"margin": 3.0}
    updates = drawn()
    ordered = np.sort(stack(updates, "w").astype(np.float64), axis=0)
    np.testing.assert_allclose(trimmed_mean(START, updates, trim=2).arrays["w"], ordered[2], rtol=1e-6)


def test_a_scalar_that_few_have_sent_is_their_median() -> None:
    updates = [update(client, [0.0, 0.0], 1.0) for client in NAMES[:3]]
    updates += [update("dan", [0.0, 0.0], 1.0, rho=1.0), update("eve", [0.0, 0.0], 1.0, rho=5.0)]
    assert trimmed_mean(START, updates, trim=1).scalars == median(START, updates).scalars == {"rho": 3.0}


def test_squared_distances_are_those_of_every_two_updates() -> None:
    updates = drawn()
    flat = np.stack([np.concatenate([one.arrays[n].ravel() for n in START.arrays]) for one in updates]).astype(
        np.float64
    )
    expected = ((flat[:, None] - flat) ** 2).sum(axis=2)
    np.testing.assert_allclose(squared_distances(list(START.arrays), updates), expected, atol=1e-12)


def test_what_all_have_in_common_does_not_round_their_differences_off() -> None:
    updates = [update(client, [1e6 + index, 0.0], 1.0) for index, client in enumerate(NAMES)]
    steps = np.arange(5.0)
    np.testing.assert_array_equal(squared_distances(["b", "w"], updates), (steps[:, None] - steps) ** 2)


def test_a_score_is_the_sum_over_the_nearest_others() -> None:
    # On a line at 0, 1, 3, 7, 20; f = 1: the two nearest others of five.
    places = np.array([0.0, 1.0, 3.0, 7.0, 20.0])
    found = krum_scores((places[:, None] - places) ** 2, 1)
    np.testing.assert_array_equal(found, [1 + 9, 1 + 4, 4 + 9, 16 + 36, 169 + 289])


def test_krum_takes_the_most_central_update_and_multi_krum_the_mean_of_the_next_as_well() -> None:
    places = dict(zip(NAMES, [0.0, 1.0, 3.0, 7.0, 20.0], strict=True))
    updates = [update(client, [place, 0.0], 1.0, margin=place) for client, place in places.items()]
    one = krum(START, updates, tolerated=1, kept=1)
    assert one.arrays["b"].tolist() == [1.0, 0.0] and one.scalars == {"margin": 1.0}
    two = krum(START, updates, tolerated=1, kept=2)
    assert two.arrays["b"].tolist() == [0.5, 0.0] and two.scalars == {"margin": 0.5}
    assert set(two.latest) == {*NAMES, "zoe"}


def test_with_too_few_updates_a_centre_says_how_many_it_needs() -> None:
    with pytest.raises(SettingsError, match="tolerated: expected more than 4 updates to trim 2, got 4"):
        trimmed_mean(START, drawn()[:4], trim=2)
    with pytest.raises(SettingsError, match="tolerated: expected 5 updates or more to keep 1 of, got 4"):
        krum(START, drawn()[:4], tolerated=1, kept=1)
    with pytest.raises(SettingsError, match="tolerated: expected 6 updates or more to keep 3 of, got 5"):
        krum(START, drawn(), tolerated=1, kept=3)


CENTRES = (
    method_settings(catalogue=5, aggregate="median"),
    method_settings(catalogue=5, aggregate="trimmed_mean", tolerated=1),
    method_settings(catalogue=5, aggregate="krum", tolerated=1),
    method_settings(catalogue=5, aggregate="krum", tolerated=1, krum_kept=2),
    method_settings(catalogue=5, clip_factor=1.5),
)


@pytest.mark.parametrize("method", CENTRES)
def test_every_centre_is_pure_and_does_not_depend_on_the_order_nor_on_how_much_is_computed_at_once(
    method: MethodSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, updates = aggregate_robustly(build_strategy("lpsfed", MethodSettings()), method), drawn(3)
    before = [digest_arrays(one.arrays) for one in updates]
    found = strategy.aggregate(START, updates)
    assert [digest_arrays(one.arrays) for one in updates] == before
    assert {name: value.shape for name, value in found.arrays.items()} == {"b": (2,), "w": (2, 3)}
    assert all(value.dtype == np.float32 for value in found.arrays.values())
    assert found.latest == {"zoe": {"rho": 0.5}} | {one.client: one.scalars for one in updates}
    for order in list(permutations(updates))[::17]:
        again = strategy.aggregate(START, order)
        assert (digest_arrays(again.arrays), again.scalars) == (digest_arrays(found.arrays), found.scalars)
    monkeypatch.setattr(robust_aggregation, "PIECE", 5)  # one column at a time
    assert digest_arrays(strategy.aggregate(START, updates).arrays) == digest_arrays(found.arrays)


@pytest.mark.parametrize("method", CENTRES)
def test_of_equal_updates_every_centre_is_that_very_update(method: MethodSettings) -> None:
    same = [Update(client, drawn()[0].arrays, {"margin": 0.1}) for client in NAMES]
    found = aggregate_robustly(build_strategy("lpsfed", MethodSettings()), method).aggregate(START, same)
    assert digest_arrays(found.arrays) == digest_arrays(same[0].arrays) and found.scalars == {"margin": 0.1}


@pytest.mark.parametrize("method", CENTRES[:4])
def test_one_bad_update_of_five_moves_no_centre_beyond_the_good_ones_and_the_mean_anywhere(
    method: MethodSettings,
) -> None:
    good, bad = drawn(5)[:4], update("eve", [1e9, -1e9], 1e9)
    found = aggregate_robustly(build_strategy("lpsfed", MethodSettings()), method).aggregate(START, [*good, bad])
    for name in START.arrays:
        least, most = stack(good, name).min(axis=0), stack(good, name).max(axis=0)
        assert ((least <= found.arrays[name]) & (found.arrays[name] <= most)).all()
    assert abs(mean_of_updates(START, [*good, bad]).arrays["b"]).min() > 1e8


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_strategy_takes_a_centre_where_it_takes_the_plain_mean_and_refuses_it_clearly_elsewhere(name: str) -> None:
    sizes = MethodSettings(width=2, catalogue=5, nodes=NodeSettings(features=3, classes=2))
    plain = build_strategy(name, sizes)
    sends = bool(plain.declaration(sizes).tensors) and not plain.reparametrised
    for centre in CENTRES:
        method = centre.model_copy(update={"nodes": sizes.nodes})
        if sends and (method.aggregate == "mean" or STRATEGIES[name](method).combine is None):
            assert build_strategy(name, method).aggregate is not plain.aggregate
        else:
            with pytest.raises(
                SettingsError, match=f"^(aggregate|clip_factor): expected .* with strategy {name}, which"
            ):
                build_strategy(name, method)


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({}, 1),
        ({"aggregate": "median"}, 1),
        ({"aggregate": "trimmed_mean", "tolerated": 2}, 5),
        ({"aggregate": "krum", "tolerated": 2}, 7),
        ({"aggregate": "krum", "tolerated": 1, "krum_kept": 4}, 7),
    ],
)
def test_how_many_updates_a_round_must_have(settings: dict[str, Any], needed: int) -> None:
    assert least_updates(method_settings(**settings)) == needed


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"aggregate": "krum"}, "tolerated: expected 1 or more with aggregate = krum, got 0"),
        ({"aggregate": "trimmed_mean"}, "tolerated: expected 1 or more with aggregate = trimmed_mean, got 0"),
        ({"aggregate": "median", "tolerated": 1}, "tolerated: expected 0 with aggregate = median, got 1"),
        ({"tolerated": 1}, "tolerated: expected 0 with aggregate = mean, got 1"),
        ({"krum_kept": 2}, "krum_kept: expected 1 with aggregate = mean, got 2"),
        ({"aggregate": "best"}, "aggregate: expected mean, median, trimmed_mean or krum, got best"),
        ({"clip_factor": 0.5}, "clip_factor: expected 0, or 1 and more, got 0.5"),
        ({"quarantine_factor": 1.5}, "quarantine_factor: expected 0, or 2 and more, got 1.5"),
        ({"clip_factor": float("nan")}, "clip_factor: .* got nan"),
    ],
)
def test_settings_that_exclude_each_other_are_refused_by_name(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        method_settings(**settings)
