"""A compiled shard says what its shard says, and a damaged one is refused with what to do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from client_service.compilation.shard import compile_shard
from client_service.compiled import texts
from client_service.compiled.shard import CompiledShard, open_shard
from client_service.data.interaction_files import load_shard, write_shard
from client_service.data.interactions import Shard, build_shard
from client_service.data.ratings import RATING_SCALES
from shared.errors import DataError

EVENTS = pl.DataFrame(
    [
        ("anna", "boots", "train", 100, 5.0),
        ("anna", "hat", "valid", 200, 4.0),
        ("anna", "socks", "test", 300, None),
        ("bert", "hat", "train", None, None),
        ("bert", "boots", "met", 50, 1.0),
        ("bert", "unlisted", "met", 60, 1.0),
        ("zoë", "hat", "met", 70, 2.0),
        ("zoë", "boots", "met", None, 2.0),
        ("carla", "\U0001f97e", "train", 400, 5.0),
    ],
    schema=["user", "item", "split", "time", "rating"],
    orient="row",
)
ITEMS = pl.DataFrame(
    {
        "item": ["boots", "hat", "scarf", "socks", "\U0001f97e"],
        "title": ["Winter boots", None, "", "Straße\nnach Süden", "\U0001f97e boots"],
        "year": [1999.0, None, 2001.5, 0.0, -1.0],
        "colour": ["black", None, "", "black", "rose\u0301"],
    }
)


def shard_of(folder: Path, events: pl.DataFrame = EVENTS, items: pl.DataFrame | None = ITEMS) -> Shard:
    write_shard(folder / "shop", "shop", events, items)
    return load_shard(folder / "shop")


def compiled(folder: Path, shard: Shard) -> CompiledShard:
    return open_shard(compile_shard(shard, folder / "serving"))


def same(found: CompiledShard, shard: Shard) -> None:
    """Whatever can be asked of both is answered alike."""
    assert tuple(found.user_ids) == shard.user_ids and tuple(found.item_ids) == shard.item_ids
    assert frozenset(found.met_only_users) == shard.met_only_users
    assert (found.titles and tuple(found.titles)) == shard.titles
    assert (found.name, found.rating) == (shard.name, shard.rating)
    assert (found.digest, found.kept_digest, found.lists_digest) == (
        shard.digest,
        shard.kept_digest,
        shard.lists_digest,
    )
    for lists, pairs in ((found.train, shard.train), (found.known_pairs, shard.known_pairs), (found.met, shard.met)):
        rows = [lists.row(row).tolist() for row in range(len(lists))]
        assert rows == [pairs[[row]].indices.tolist() for row in range(len(shard.user_ids))]
    for user in (*shard.user_ids, *shard.met_only_users, "nobody", "", "\ud800", " anna\ufeff"):
        assert found.user_row(user) == shard.user_row(user)
        assert found.met_items(user).tolist() == shard.met_items(user).tolist()
    for item in (*shard.item_ids, "nothing", "boots ", "\ud83e\udd7e"):
        assert found.item_row(item) == shard.item_row(item)
    known = {(user, item): moment for user, item, moment in moments(shard.events)}
    for user in range(len(shard.user_ids)):
        for item in range(len(shard.item_ids)):
            assert found.positive_time(user, item) == known.get((user, item))
    met = {} if shard.met_events is None else {(user, item): at for user, item, at in moments(shard.met_events)}
    for name in (*shard.user_ids, *shard.met_only_users, "nobody"):
        for row, item_id in enumerate(shard.item_ids):
            assert found.met_time(name, row) == met.get((name, item_id))
    assert found.popularity.tolist() == np.bincount(shard.train.indices, minlength=len(shard.item_ids)).tolist()
    rows = [] if shard.features is None else shard.features.rows(named=True)
    assert [{name: one.value_at(row) for name, one in found.features.items()} for row in range(len(rows))] == rows


def moments(events: pl.DataFrame) -> list[tuple[int, int, int]]:
    return events.select("user", "item", "time").rows() if "time" in events.columns else []


PLAIN = EVENTS.filter(pl.col("split") != "met").select("user", "item", "split")


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(shard_of, id="everything that a shard can have"),
        pytest.param(lambda folder: shard_of(folder).with_all_data, id="all pairs for training"),
        pytest.param(lambda folder: shard_of(folder, PLAIN, None), id="no titles, times, features, nothing met"),
        pytest.param(lambda folder: shard_of(folder, PLAIN, ITEMS.select("item", "title")), id="titles alone"),
        pytest.param(
            lambda folder: shard_of(folder, EVENTS.filter(pl.col("split") != "met"), ITEMS.drop("title")), id="features"
        ),
    ],
)
def test_a_compiled_shard_says_what_the_shard_says(tmp_path: Path, make: Callable[[Path], Shard]) -> None:
    shard = make(tmp_path)
    same(compiled(tmp_path, shard), shard)


def test_a_rating_s_meaning_is_kept(tmp_path: Path) -> None:
    shard = replace(shard_of(tmp_path), rating=RATING_SCALES["stars"])
    same(compiled(tmp_path, shard), shard)


def test_ids_of_an_earlier_version_are_found_in_their_own_and_in_their_one_spelling(tmp_path: Path) -> None:
    events = pl.DataFrame(
        [(" u1", "1.0", "train"), ("u1", "2.0", "train"), ("e\u0301va ", "2", "train")],
        schema=["user", "item", "split"],
        orient="row",
    )
    shard = build_shard("old", events, None)
    found = compiled(tmp_path, shard)
    same(found, shard)
    for text in (" u1", "u1", "u1 ", "e\u0301va ", "\xe9va", "e\u0301va"):
        assert found.user_row(text) == shard.user_row(text) is not None
    for text in ("1", "1.0", " 1.0", "2.0", "2", "3"):
        assert found.item_row(text) == shard.item_row(text)


def test_a_thousand_ids_that_lie_beside_each_other_are_all_found(tmp_path: Path) -> None:
    users = [f"user-{number}" for number in range(3000)]
    events = pl.DataFrame({"user": users, "item": [f"i{n % 700}" for n in range(3000)], "split": "train"})
    shard = build_shard("many", events, None)
    found = compiled(tmp_path, shard)
    assert [found.user_row(user) for user in shard.user_ids] == list(range(3000))
    assert [found.user_row(f"{user}x") for user in users] == [None] * 3000


def test_rows_of_few_ids_are_kept_and_the_others_are_looked_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "KEPT_IDS", 3)
    items = [f"i{number}" for number in range(9)]
    events = pl.DataFrame({"user": ["u"] * 9, "item": items, "split": "train"})
    index = compiled(tmp_path, build_shard("few", events, None)).item_ids
    for _ in range(2):
        assert index.rows([*items, "i0", "unknown"]) == [*range(9), 0, None]
        assert [index.row(item) for item in reversed(items)] == list(reversed(range(9)))
        assert len(index._known) <= 3


def test_features_are_found_by_value(tmp_path: Path) -> None:
    found = compiled(tmp_path, shard_of(tmp_path))
    year, colour = found.features["year"], found.features["colour"]
    assert [
        np.flatnonzero(year.equal_to("?", number)).tolist() for number in (0.0, 2001.5, 7.0, float("nan"), None)
    ] == [
        [3],
        [2],
        [],
        [],
        [],
    ]
    told = {text: np.flatnonzero(colour.equal_to(text, 1.0)).tolist() for text in ("black", "", "ros\xe9", "rose", "z")}
    assert told == {"black": [0, 3], "": [2], "ros\xe9": [4], "rose": [], "z": []}


def test_words_are_found_in_folded_titles(tmp_path: Path) -> None:
    shard = compiled(tmp_path, shard_of(tmp_path))
    found = {
        word: np.flatnonzero(shard.titles_holding(word)).tolist()
        for word in ("boots", "strasse", "nach", "o", "\U0001f97e")
    }
    assert found == {"boots": [0, 4], "strasse": [3], "nach": [3], "o": [0, 4], "\U0001f97e": [4]}
    assert not shard.titles_holding("bootsstrasse").any() and not shard.titles_holding("\ud800").any()
    assert not shard.titles_holding("x" * 1000).any() and not compiled(tmp_path, shard_of(tmp_path, PLAIN, None)).titles


def test_one_content_has_one_folder_which_is_reused(tmp_path: Path) -> None:
    shard = shard_of(tmp_path)
    first = compile_shard(shard, tmp_path / "serving")
    before = (first / "train-indices.npy").stat().st_ino
    assert compile_shard(shard, tmp_path / "serving") == first
    assert (first / "train-indices.npy").stat().st_ino == before
    assert compile_shard(shard.with_all_data, tmp_path / "serving") != first
    assert sorted(path.name[:6] for path in (tmp_path / "serving").iterdir()) == ["shard-", "shard-"]


@pytest.mark.parametrize("damage", ["cut", "gone", "headless", "other"])
def test_a_damaged_folder_is_refused_and_written_anew(tmp_path: Path, damage: str) -> None:
    shard = shard_of(tmp_path)
    folder = compile_shard(shard, tmp_path / "serving")
    if damage == "cut":
        (folder / "items-bytes.npy").write_bytes((folder / "items-bytes.npy").read_bytes()[:-3])
    elif damage == "gone":
        (folder / "known-indptr.npy").unlink()
    elif damage == "headless":
        (folder / "head.json").write_text("{}")
    else:
        (folder / "head.json").write_text((folder / "head.json").read_text().replace("-shard/1", "-shard/9"))
    with pytest.raises(DataError, match=r"expected .*: remove this folder, the trainer compiles it anew") as refused:
        open_shard(folder)
    assert not any(word in str(refused.value) for word in ("anna", "boots", "Winter"))
    same(open_shard(compile_shard(shard, tmp_path / "serving")), shard)


def test_a_shard_that_is_out_of_use_is_freed_at_once(tmp_path: Path) -> None:
    """A refresh replaces it while requests are answered: nobody waits for the collector of cycles."""
    found = compiled(
        tmp_path, build_shard("few", pl.DataFrame({"user": ["u"], "item": ["i"], "split": ["train"]}), None)
    )
    assert found.user_row("u") == 0 and found.item_ids.rows(["i", "j", " i"]) == [0, None, 0]
    index = weakref.ref(found.user_ids)
    gc.disable()
    try:
        del found
        assert index() is None
    finally:
        gc.enable()
