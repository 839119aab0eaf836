"""What joining would bring: a silo cut into silos of its own, and the curve through what they gain together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.joining_value.forecast import estimate_joining_value, forecast
from client_service.joining_value.trials import (
    CutTrial,
    Gain,
    count_halvings,
    count_trainings,
    cut_nested,
    measure_gains,
)
from shared.errors import DataError
from simulation.partitioning.sources import SHOPS, Cut, cut_shards


@pytest.fixture
def silo(shard_of: Callable[..., Shard]) -> Shard:
    """120 users of three communities of 20 items: ten items in training, three for validation, two for tests."""
    generator, parts = np.random.default_rng(0), np.zeros((3, 120, 60))
    for user in range(120):
        own = user % 3 * 20 + generator.permutation(20)
        for split, items in enumerate((own[:10], own[10:13], own[13:15])):
            parts[split, user, items] = 1.0
    return shard_of(*parts)


@pytest.mark.parametrize(
    ("users", "halved", "trained"), [(1, 0, 1), (47, 0, 1), (48, 1, 3), (96, 2, 7), (191, 2, 7), (192, 3, 15)]
)
def test_a_silo_is_halved_until_its_parts_are_small(users: int, halved: int, trained: int) -> None:
    assert (count_halvings(users), count_trainings(users)) == (halved, trained)


@pytest.mark.parametrize("users", [48, 97, 190, 235, 314, 999])
def test_every_part_lies_whole_in_a_part_twice_its_size(users: int) -> None:
    levels = cut_nested(np.random.default_rng(0).permutation(users), count_halvings(users))
    assert [len(cut) for cut in levels] == [2**level for level in range(count_halvings(users), -1, -1)]
    for smaller, larger in pairwise(levels):
        for number, part in enumerate(smaller):
            assert set(part) <= set(larger[number // 2])
    for cut in levels:
        assert sorted(np.concatenate(cut)) == list(range(users))
        assert max(map(len, cut)) - min(map(len, cut)) <= 2 ** (count_halvings(users) - 1)


def test_a_silo_of_any_number_of_users_is_forecast(silo: Shard, shard_of: Callable[..., Shard]) -> None:
    for users in (99, 101, 103):
        some = shard_of(*(matrix[:users].toarray() for matrix in (silo.train, silo.valid, silo.test)))
        for gain in measure_gains(some, 0, 16, lambda _: None).gains:
            assert (np.isnan(gain.alone) == np.isnan(gain.together)).all()


def test_each_judged_user_is_compared_on_the_same_items_and_test_items_are_never_read(
    silo: Shard, shard_of: Callable[..., Shard]
) -> None:
    told: list[str] = []
    drawn = measure_gains(silo, 0, 16, told.append)
    assert len(told) == count_trainings(120) == 7 and drawn.users == 120
    assert [(gain.users, gain.times) for gain in drawn.gains] == [(30, 2), (30, 4), (60, 2)]
    for gain in drawn.gains:
        assert (np.isnan(gain.alone) == np.isnan(gain.together)).all() and (~np.isnan(gain.alone)).sum() == 60
    other = measure_gains(silo, 1, 16, told.append)
    assert not (~np.isnan(drawn.whole) & ~np.isnan(other.whole)).any(), "the next draw judges the others"
    blind = shard_of(silo.train.toarray(), silo.valid.toarray())
    again = measure_gains(blind, 0, 16, told.append)
    for one, two in zip(drawn.gains, again.gains, strict=True):
        np.testing.assert_array_equal(one.together, two.together)


def following(strength: float, exponent: float, users: int, noise: float) -> CutTrial:
    """Gains of 2,000 users that follow the curve, but for noise."""
    rng, alone = np.random.default_rng(users), np.full(2000, 0.2)
    gains = []
    for size, times in ((50, 2), (50, 4), (50, 8), (100, 2), (100, 4), (200, 2)):
        log = strength * size**-exponent * (1 - times**-exponent)
        gains.append(Gain(size, times, alone, alone * np.exp(log) + noise * rng.standard_normal(2000)))
    return CutTrial(400, np.full(2000, 0.3), tuple(gains))


@pytest.mark.parametrize("exponent", [0.3, 0.5, 0.9])
def test_the_curve_is_found_again_and_continued(exponent: float) -> None:
    found = forecast([following(3.0, exponent, 400, 0.02)] * 2, 400)
    for outlook in found.outlooks:
        truth = 0.3 * np.exp(3.0 * 400.0**-exponent * (1 - outlook.times**-exponent))
        assert outlook.quality.value == pytest.approx(truth, rel=0.02)
        assert outlook.quality.low < truth < outlook.quality.high
    gains = [outlook.gain.value for outlook in found.outlooks]
    assert gains == sorted(gains) and np.diff(gains)[0] > np.diff(gains)[-1], "it rises, and levels off"


def test_no_gain_is_no_promise() -> None:
    found = forecast([following(0.0, 0.5, 400, 0.05)] * 2, 400)
    assert all(outlook.gain.low < 0.002 and abs(outlook.gain.value) < 0.02 for outlook in found.outlooks)


def test_it_is_said_in_plain_words_and_alike_each_time(silo: Shard) -> None:
    found = estimate_joining_value(silo, 16, draws=2)
    assert not found.few and found.validation_users == 120 and len(found.measured) == 3
    assert found.sentences[1].startswith("a federation of about 4 silos like yours that sell the same items: NDCG@20 ")
    assert estimate_joining_value(silo, 16, draws=2) == found


def test_of_few_users_nothing_is_said(planted: Shard, shard_of: Callable[..., Shard]) -> None:
    found = estimate_joining_value(planted, 16)
    assert found.few and found.curve is None
    assert found.sentences == ("Too few to say: expected at least 50 users with validation items, got 40.",)
    with pytest.raises(DataError, match="expected validation items"):
        estimate_joining_value(shard_of(planted.train.toarray()), 16)


def test_text_counts_and_what_silos_share_by_it_alone_is_said(tmp_path: Path) -> None:
    shop = load_shard(cut_shards(SHOPS, Cut(4), tmp_path).paths[2])
    found, without = (estimate_joining_value(one, 64, 2) for one in (shop, replace(shop, titles=None, features=None)))
    assert found.text is not None and without.text is None
    assert found.text.together > 1.05 * found.text.alone > 0.0
    for told, untold in zip(found.measured, without.measured, strict=True):
        assert told.together > untold.together
    assert found.text.alone == found.measured[0].alone and found.text.times == 8
    assert found.sentences[-1].startswith("silos of 27 users by the text of 8 of them, whatever they sell: NDCG@20 ")
    assert not any("by the text" in one for one in without.sentences)
