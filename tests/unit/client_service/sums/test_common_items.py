"""The list of common items that a sum of hashed ids becomes: the intersection of plain ids, collisions aside."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.sums.common_items import COMMON_ITEMS_SUM, CommonItems
from client_service.sums.silo_sum import SumRound, Sums
from client_service.sums.storage import load_basis, load_basis_head, save_basis
from shared.errors import ProtocolError
from shared.method.settings import BasisSettings, MethodSettings
from shared.sums.common_items import (
    COMMON_ITEMS,
    HELD,
    TABLES,
    TRAINED,
    count_common,
    hash_ids,
    hide_rare_buckets,
)

KEY = "ab" * 32
BUCKETS = MethodSettings().basis.buckets
METHOD = MethodSettings(basis=BasisSettings(kind="items", buckets=1 << 16))
SMALL = MethodSettings(basis=BasisSettings(kind="items", buckets=1 << 8))


def shard_of(*ids: str, counts: dict[str, int] | None = None) -> Shard:
    """A silo where each item has one training pair, or so many."""
    items = sorted(ids)
    known = counts or {}
    train = np.array([[float(user < known.get(item, 1)) for item in items] for user in range(9)])
    none = sparse.csr_array(train.shape)
    users = [f"u{user}" for user in range(9)]
    return build_shard_from_matrices("silo", users, items, (sparse.csr_array(train), none, none))


def at(shard: Shard, sums: dict[int, Sums], method: MethodSettings = METHOD, federation: str = KEY) -> SumRound:
    return SumRound(COMMON_ITEMS_SUM.count(shard, method), method, 5, 3, 1, sums, federation)


def listed(*shards: Shard, method: MethodSettings = METHOD) -> CommonItems:
    parts = [COMMON_ITEMS_SUM.add(at(shard, {}, method)) for shard in shards]
    total = {name: np.sum([part[name] for part in parts], axis=0, dtype=np.uint32) for name in parts[0]}
    found = COMMON_ITEMS_SUM.finish(at(shards[0], {1: dict(COMMON_ITEMS.hand_out(method, total))}, method))
    assert isinstance(found, CommonItems)
    return found


def placed(known: CommonItems, shard: Shard, places: int = 1 << 14) -> dict[str, int]:
    found = known.place(shard, places).shard
    assert found.places is not None
    return {item: int(place) for item, place in zip(found.item_ids, found.places, strict=True) if place >= 0}


def test_the_list_is_the_intersection_of_plain_ids_and_alike_in_every_silo() -> None:
    generator = np.random.default_rng(0)
    names = [f"tt{number:07}" for number in range(3000)]
    silos = [shard_of(*generator.choice(names, 1200, replace=False)) for _ in range(3)]
    held = {name: sum(name in silo.item_ids for silo in silos) for name in names}
    known = listed(*silos)
    each = [placed(known, silo) for silo in silos]
    for silo, found in zip(silos, each, strict=True):
        common = {name for name in silo.item_ids if held[name] >= 2}
        assert len(common ^ found.keys()) <= 0.03 * len(common)  # 2 % of the own items share a bucket with another
        assert len({name for name in found if held[name] < 2}) <= 4  # of 430 each has a chance of (2400 / 65536)^2
        assert len({*found.values()}) == len(found)
    for name in each[0].keys() & each[1].keys():
        assert each[0][name] == each[1][name]
    assert known.pairs_of_all[0] == sum(silo.train.nnz for silo in silos)


def test_what_most_silos_hold_comes_first_and_what_is_beyond_the_places_has_none() -> None:
    everywhere, twice = [f"a{number}" for number in range(40)], [f"b{number}" for number in range(40)]
    silos = [shard_of(*everywhere, *twice), shard_of(*everywhere, *twice), shard_of(*everywhere, "own")]
    known = listed(*silos)
    assert {place for name, place in placed(known, silos[0]).items() if name in everywhere} == {*range(40)}
    assert placed(known, silos[0], places=40).keys() == {*everywhere}
    assert "own" not in placed(known, silos[2])


def test_of_two_own_items_in_one_bucket_the_more_frequent_one_is_summed_and_the_other_counted() -> None:
    names = [f"{letter}{number}" for letter in string.ascii_lowercase for number in range(30)]
    first, _ = hash_ids(names, KEY, 1 << 8)
    order = np.argsort(first, kind="stable")
    place = int(np.flatnonzero(np.diff(first[order]) == 0)[0])
    rare, often = pair = names[order[place]], names[order[place + 1]]
    silo = shard_of(*pair, counts={rare: 2, often: 7})
    known = listed(silo, silo, method=SMALL)
    assert placed(known, silo).keys() == {often}
    assert known.find_places(silo.item_ids, np.array([1.0, 1.0]), 99).hidden == 1
    assert list(placed(known, shard_of(*pair))) == [min(pair)]  # of equals the first id


def test_ids_in_another_spelling_are_the_same_item_and_in_another_case_are_not() -> None:
    decomposed, composed = "caf\u0065\u0301", "caf\u00e9"
    known = listed(shard_of(composed, "17", "Boot"), shard_of(decomposed, "17.0", "boot"))
    assert placed(known, shard_of(decomposed)).keys() == {decomposed}
    assert placed(known, shard_of("17.0")) == {"17.0": placed(known, shard_of("17"))["17"]}
    assert not placed(known, shard_of("Boot", "boot"))


def test_no_common_item_gives_an_empty_list_and_no_silo_a_place() -> None:
    silos = [shard_of(*(f"{letter}{number}" for number in range(20))) for letter in "abc"]
    known = listed(*silos)
    assert len(known.listed) == 0 and all(not placed(known, silo) for silo in silos)


def test_single_silos_buckets_are_not_handed_out() -> None:
    part = COMMON_ITEMS_SUM.add(at(shard_of("a", "b"), {}))
    assert part[HELD].sum() == 4 and part[TRAINED][0] == 2
    handed = COMMON_ITEMS.hand_out(METHOD, part)
    assert not np.asarray(handed[HELD]).any() and count_common(handed) == (0, 2)


def test_another_federation_hashes_otherwise() -> None:
    ours, theirs = (hash_ids(["a", "b", "c"], key, 1 << 20) for key in (KEY, "cd" * 32))
    assert not (ours == theirs).any() and ours.shape == (2, 3)
    np.testing.assert_array_equal(ours, hash_ids(["a", "b", "c"], KEY, 1 << 20))


def test_more_holders_than_silos_are_refused() -> None:
    part = COMMON_ITEMS_SUM.add(at(shard_of("a"), {}))
    with pytest.raises(ProtocolError, match="at most 16,384 silos to hold a bucket of items, got more"):
        COMMON_ITEMS_SUM.finish(at(shard_of("a"), {1: {**part, HELD: part[HELD] * (2**32 - 1)}}))


def test_the_list_is_the_same_from_the_disk(tmp_path: Path) -> None:
    silo = shard_of("a", "b", "c")
    known = listed(silo, silo)
    save_basis(tmp_path, "run-1", known, hidden=3)
    head = load_basis_head(tmp_path, "items")
    assert head is not None and (head.run, head.hidden) == ("run-1", 3)
    kept = load_basis(tmp_path, known.digest)
    assert isinstance(kept, CommonItems) and placed(kept, silo) == placed(known, silo) != {}
    assert kept.digest == known.digest


def test_items_are_hashed_as_the_silo_has_matched_them() -> None:
    theirs, own = shard_of("gtin-1", "b", "c"), shard_of("sku-7", "b", "d")
    matched = replace(own, matched_ids=tuple({"sku-7": "gtin-1", "d": ""}.get(name, name) for name in own.item_ids))
    empty = replace(theirs, matched_ids=("", "", ""))
    known = listed(theirs, matched)
    assert placed(known, matched).keys() == {"sku-7", "b"}
    assert placed(known, matched)["sku-7"] == placed(known, theirs)["gtin-1"]
    assert not placed(listed(empty, empty), empty) and COMMON_ITEMS_SUM.count(empty, METHOD).ids == ()
    assert placed(listed(theirs, own), own).keys() == {"b"}


@pytest.mark.parametrize("first", [0, 1000])
@pytest.mark.parametrize(("silos", "own"), [(3, 33_000), (20, 5_000), (100, 1_000)])
def test_silos_without_a_common_item_have_none_however_many_they_are(silos: int, own: int, first: int) -> None:
    assert count_of(*(range(silo * 10**6, silo * 10**6 + own) for silo in range(first, first + silos))) == 0


@pytest.mark.parametrize(("large", "small"), [(50_000, 500), (100_000, 1_000)])
def test_a_large_silo_does_not_hide_what_two_small_ones_have_in_common_with_it(large: int, small: int) -> None:
    """By its own items many more matches of two silos could be chance than there are."""
    assert small * 0.99 <= count_of(range(large), range(small), range(small)) <= small * 1.01


def count_of(*silos: range) -> int:
    """Counts the common items of silos with these ids, in tables of the usual size."""
    held = np.zeros((TABLES, BUCKETS), np.uint32)
    for silo in silos:
        for table, found in zip(held, hash_ids(map(str, silo), "federation", BUCKETS), strict=True):
            table[np.unique(found)] += 1
    shown = hide_rare_buckets(MethodSettings(), {HELD: held, TRAINED: np.array([1], np.uint32)})
    return count_common(shown).items
