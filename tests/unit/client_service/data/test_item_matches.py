"""What a silo has signed of its own items: it holds as it was signed, and no two own items are one of the others'."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from client_service.data.interaction_files import with_places
from client_service.data.interactions import Shard
from client_service.data.item_matches import NO_MATCH, is_signed, name_items, read_matches, sign_matches
from client_service.sums.common_items import CommonItems, own_items
from client_service.sums.statistics import catalogue_matrix, training_digest
from client_service.tasks.items import load_listed_shard
from shared.errors import DataError
from shared.sums.common_items import hash_ids
from tests.conftest import Silos
from tests.support.small import SMALL, small_client

LIST = ["a", "b", "c"]


def test_what_is_signed_is_read_again_whatever_the_ids_are(tmp_path: Path) -> None:
    path = tmp_path / "matches.csv"
    matches = {"own,1": "b", 'a "quoted" one': "c", "käse": "a", "17": NO_MATCH}
    digest = sign_matches(matches, path)
    assert read_matches(path) == matches and len(digest) == 64 and is_signed(path)
    assert path.stat().st_mode & 0o077 == 0


def test_what_was_changed_since_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "matches.csv"
    sign_matches({"x": "a", "y": "b"}, path)
    path.write_text(path.read_text().replace("x,a", "x,c"))
    with pytest.raises(
        DataError, match="got changed ones; correct the file, then sign it with `lpsfed catalogue sign`"
    ):
        read_matches(path)
    path.write_text("own,shared\nx,a\n")
    with pytest.raises(DataError, match="expected signed matches"):
        read_matches(path)


@pytest.mark.parametrize("matches", [{"x": "a", "y": "a"}, {"x": "a", "y": " a "}, {"x": "a", " x": "b"}])
def test_two_own_items_are_never_one_of_the_list_nor_one_two(tmp_path: Path, matches: dict[str, str]) -> None:
    """A sum would count a user twice who has both."""
    with pytest.raises(DataError, match="each"):
        sign_matches(matches, tmp_path / "matches.csv")
    assert not (tmp_path / "matches.csv").exists()


def test_an_own_id_that_was_given_to_another_own_item_is_none_of_the_list() -> None:
    assert name_items(["a", "x", "b", "z"], {"x": "a", "b": NO_MATCH}) == (NO_MATCH, "a", NO_MATCH, "z")


def listed_shard(tmp_path: Path, silos: Silos, matches: dict[str, str]) -> Shard:
    (folder,) = silos(1)
    (tmp_path / "list.txt").write_text("".join(f"{item}\n" for item in LIST))
    sign_matches(matches, tmp_path / "matches.csv")
    method = SMALL.model_copy(update={"catalogue": len(LIST)})
    given = {"catalogue": tmp_path / "list.txt", "matches": tmp_path / "matches.csv", "method": method}
    return load_listed_shard(small_client(folder, tmp_path, **given))


def test_a_shard_has_the_places_that_the_silo_has_signed(tmp_path: Path, silos: Silos) -> None:
    (folder,) = silos(1)
    first, second = small_shard_ids(folder)
    shard = listed_shard(tmp_path, silos, {first: "c", second: "a"})
    rows = dict(zip(shard.item_ids, shard.places, strict=True))  # type: ignore[arg-type]
    assert (rows.pop(first), rows.pop(second)) == (2, 0) and set(rows.values()) == {-1}
    counts = catalogue_matrix(shard, len(LIST)).sum(axis=0)
    own = shard.train.sum(axis=0)
    assert counts.tolist() == [own[shard.item_ids.index(second)], 0, own[shard.item_ids.index(first)]]


def small_shard_ids(folder: Path) -> tuple[str, str]:
    from client_service.data.interaction_files import load_shard

    first, second, *_ = load_shard(folder).item_ids
    return first, second


def test_what_is_matched_anew_is_another_part_of_the_sum(tmp_path: Path, silos: Silos) -> None:
    """Else the difference of a sum before and after it would be made, and tell which items the silo has moved."""
    (folder,) = silos(1)
    first, second = small_shard_ids(folder)
    shard = listed_shard(tmp_path, silos, {first: "c", second: "a"})
    again = replace(shard, matched_ids=name_items(shard.item_ids, {first: "a", second: "c"}))
    moved = with_places(again, tmp_path / "list.txt", len(LIST), partly=True)
    parts = [catalogue_matrix(one, len(LIST)).toarray() for one in (shard, moved)]
    assert not np.array_equal(*parts) and training_digest(shard) != training_digest(moved)
    plain = replace(shard, matched_ids=None)
    assert training_digest(plain) == training_digest(replace(plain, matched_ids=plain.item_ids))


def test_hashed_ids_are_those_that_the_silo_has_matched(tmp_path: Path, silos: Silos) -> None:
    """Where nobody merges a list, two silos find an item that both have named alike; what is refused is no item."""
    (folder,) = silos(1)
    plain = load_listed_shard(small_client(folder, tmp_path, method=SMALL))
    first, second = small_shard_ids(folder)
    named = name_items(plain.item_ids, {first: "title:heat|1995", second: NO_MATCH})
    matched = replace(plain, matched_ids=named)
    ids = own_items(matched, SMALL).ids
    assert "title:heat|1995" in ids and not {first, second, NO_MATCH} & set(ids)
    assert set(ids) | {first, second} == {*own_items(plain, SMALL).ids, "title:heat|1995"}
    buckets = 1 << 16
    rows = hash_ids([*ids, NO_MATCH], "key", buckets)
    known = CommonItems("items", "key", buckets, np.unique(rows[0]), np.unique(rows[1]), np.ones(1, np.int64))
    places = known.place(matched, len(known.listed)).shard.places
    assert places is not None
    placed = dict(zip(matched.item_ids, places >= 0, strict=True))
    assert placed[first] and not placed[second]
