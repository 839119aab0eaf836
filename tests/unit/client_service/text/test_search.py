"""Items are found despite typing errors, and by what their features say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from client_service.compilation.shard import compile_in_memory, compile_shard
from client_service.compiled.shard import open_shard
from client_service.data.interactions import build_shard
from client_service.text.projection import ProjectionEncoder, make_text_table
from client_service.text.search import TitleSearch, count_errors, feature_arrays, search_arrays
from client_service.text.vocabulary import SvdEncoder

TITLES = [
    "The Godfather (1972)",
    "Forrest Gump (1994)",
    "Das Boot (1981)",
    "Die Straße (1954)",
    "卧虎藏龙 (2000)",
    "Kino 🎬",
    "Forest Fires (1999)",
    "Amélie (2001)",
    "Terminator 2 (1991)",
    "",
    None,
]
GENRES = [
    "Crime|Drama",
    "Drama|Romance",
    "War|Drama",
    "Drama",
    "Action",
    None,
    "Film-Noir",
    "Romance",
    "Action",
    None,
    None,
]
ALL = np.ones(len(TITLES), dtype=bool)


def index(*, features: bool = True) -> TitleSearch:
    arrays = search_arrays(TITLES, {"genres": GENRES})
    encoder = ProjectionEncoder(64)
    values = encoder.encode(TITLES, {"genres": GENRES})
    return TitleSearch(arrays | feature_arrays(values, encoder) if features else arrays)


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("godfater", 0),
        ("the godfahter", 0),
        ("forest gump", 1),
        ("forset gump", 1),
        ("DAS BOOOT", 2),
        ("strasse", 3),
        ("straze", 3),
        ("藏龙", 4),
        ("🎬", 5),
        ("amelie", 7),
        ("termnator 2", 8),
        ("termin", 8),
    ],
)
def test_typing_errors_beginnings_and_accents_are_passed_over(query: str, best: int) -> None:
    assert index(features=False).find(query, ALL)[0] == (best, "typing")


@pytest.mark.parametrize("query", ["", " ", "...", "1973", "xyzzy", "go", "a" * 5000, "\ud800", "the the the"])
def test_other_texts_find_nothing(query: str) -> None:
    assert [row for row, way in index().find(query, ALL) if way == "typing"] in ([], [0])
    assert index(features=False).find("xyzzy", ALL) == []


@pytest.mark.parametrize(
    ("query", "best"), [("war", 2), ("film noir", 6), ("CRIME", 0), ("action 1991", 8), ("2000 action", 4)]
)
def test_categories_and_years_find_items_by_their_features(query: str, best: int) -> None:
    found = index().find(query, ALL)
    assert next(row for row, way in found if way == "meaning") == best


def test_hidden_items_are_not_found() -> None:
    shown = ALL.copy()
    shown[0] = False
    assert index().find("godfater", shown) == [] and index().find("crime", shown) == []


def test_the_vocabulary_finds_titles_by_words_of_the_same_items() -> None:
    titles = [
        f"{one} {two}" for one, two in (("space", "war"), ("space", "war"), ("love", "story"), ("love", "story"))
    ] * 3
    encoder = SvdEncoder.fit(make_text_table(titles, {}), 2)
    arrays = search_arrays(titles, {}) | feature_arrays(encoder.encode(titles), encoder)
    found = TitleSearch(arrays).find("peace spac", np.ones(len(titles), dtype=bool))
    assert set(found) == {(row, "meaning") for row, title in enumerate(titles) if title == "space war"}


def test_an_encoder_that_a_server_cannot_run_is_left_out() -> None:
    values = np.ones((len(TITLES), 4), dtype=np.float32)
    assert feature_arrays(values, None) == {}


@pytest.mark.parametrize(
    ("one", "other", "errors"),
    [
        ("matrix", "matrix", 0),
        ("matirx", "matrix", 1),
        ("matrx", "matrix", 1),
        ("metrics", "matrix", 3),
        ("a", "abcdef", 3),
    ],
)
def test_errors_are_counted_up_to_a_bound(one: str, other: str, errors: int) -> None:
    assert count_errors(one, other, 2) == errors


def test_the_index_is_compiled_with_the_shard_and_mapped(tmp_path: Path) -> None:
    events = pl.DataFrame({"user": ["u"] * 11, "item": [f"i{row:02}" for row in range(11)], "split": ["train"] * 11})
    items = pl.DataFrame({"item": [f"i{row:02}" for row in range(11)], "title": TITLES, "genres": GENRES})
    shard = build_shard("silo", events, items)
    opened = open_shard(compile_shard(shard, tmp_path))
    found = TitleSearch(opened.search_arrays).find("forset gump", ALL)
    assert found[0] == (1, "typing") and found == TitleSearch(compile_in_memory(shard).search_arrays).find(
        "forset gump", ALL
    )
    assert compile_in_memory(build_shard("silo", events, None)).search_arrays == {}
