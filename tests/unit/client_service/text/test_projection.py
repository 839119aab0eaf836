"""The projection encodes items the same way in every silo."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from client_service.data.interactions import Shard, build_shard
from client_service.text.item_features import item_features
from client_service.text.projection import ProjectionEncoder, make_text_table, split_words

TITLES = ["Heat (1995)", "Das Boot (1981)", "卧虎藏龙 (2000)", "🎬🎉", "", None]
GENRES = ["Action|Crime|Thriller", "War|Drama", "Action|Drama", None, None, None]
EVENTS = pl.DataFrame({"user": ["u", "u"], "item": ["a", "b"], "split": ["train", "train"]})


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))


def shard_with(**columns: list[str] | list[float]) -> Shard:
    return build_shard("silo", EVENTS, pl.DataFrame({"item": ["a", "b", "c"], **columns}))


@pytest.mark.parametrize("width", [8, 64, 513])
def test_rows_have_length_one_and_an_item_without_text_is_zero(width: int) -> None:
    found = ProjectionEncoder(width).encode(TITLES, {"genres": GENRES})
    assert found.shape == (6, width) and found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), [1, 1, 1, 1, 0, 0], atol=1e-6)


def test_an_item_has_the_same_features_in_another_process_and_another_catalogue() -> None:
    code = "from client_service.text.projection import ProjectionEncoder as P; import sys;"
    code += "print(P(64).encode(['Das Boot (1981)'], {'kategorie': ['Drama|War']}).tobytes().hex())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    elsewhere = np.frombuffer(bytes.fromhex(done.stdout.strip()), dtype=np.float32)
    np.testing.assert_allclose(ProjectionEncoder(64).encode(TITLES, {"genres": GENRES})[1], elsewhere, atol=1e-6)


def test_another_seed_is_another_function() -> None:
    one, other = (ProjectionEncoder(64, seed).encode(["Heat", "Das Boot", "卧虎藏龙"]) for seed in (1, 2))
    assert all(abs(cosine(a, b)) < 0.5 for a, b in zip(one, other, strict=True))


def test_near_years_are_near_and_a_column_of_years_goes_before_the_title() -> None:
    found = ProjectionEncoder(64).encode(
        ["(1995)", "(1997)", "(1950)", ""], {"year": np.array([np.nan] * 3 + [1995.0])}
    )
    assert cosine(found[0], found[1]) > 0.9 > 0.5 > abs(cosine(found[0], found[2]))
    np.testing.assert_allclose(found[3], found[0], atol=1e-6)
    texts = ProjectionEncoder(64).encode([""], {"release_year": ["1995"]})
    np.testing.assert_allclose(texts[0], found[0], atol=1e-6)


def test_the_number_of_categories_is_kept_that_rows_of_length_one_lose() -> None:
    found = ProjectionEncoder(64).encode([""] * 4, {"genres": ["War", "War|Drama", "War|Drama|Action|Crime", None]})
    assert found[0, -1] < found[1, -1] == 0.0 < found[2, -1] and found[3, -1] == 0.0


def test_near_numbers_are_near() -> None:
    found = ProjectionEncoder(64).encode([""] * 3, {"price": np.array([10.0, 11.0, 900.0])})
    assert cosine(found[0], found[1]) > 0.9 > 0.6 > cosine(found[0], found[2])


@pytest.mark.parametrize(
    "name", ["tags", "tag", "user_tags", "avg_rating", "ratingCount", "Views", "n-sold", "popularity", "销量"]
)
def test_what_users_did_is_no_feature(name: str) -> None:
    plain = item_features(shard_with(title=["One", "Two", "Three"]))
    more = item_features(shard_with(title=["One", "Two", "Three"], **{name: ["funny", "sad|long", "funny"]}))
    assert plain is not None and more is not None and more.digest == plain.digest
    assert make_text_table(["One"], {name: ["funny"]}).categories == {}
    assert item_features(shard_with(**{name: ["funny", "sad", "dull"]})) is None


def test_without_titles_and_attributes_there_are_no_features() -> None:
    assert item_features(build_shard("silo", EVENTS, None)) is None


def test_features_follow_the_items_of_the_shard() -> None:
    found = item_features(shard_with(title=["One", "Two", "Three"], genres=["War", "Drama", "War"]))
    assert found is not None and found.encoder == "projection/64/1" and len(found.digest) == 64
    alone = ProjectionEncoder(64).encode(["Two"], {"genres": ["Drama"]})
    np.testing.assert_allclose(found.values[1], alone[0], atol=1e-6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Die Straße (1954)", ["die", "strasse", "1954"]),
        ("Amélie", ["amelie"]),
        ("AMÉLIE", ["amelie"]),
        ("卧虎藏龙", ["卧", "虎", "藏", "龙", "卧虎", "虎藏", "藏龙"]),
        ("Kino 🎬!", ["kino", "🎬"]),
        ("Ｆｕｌｌ", ["full"]),
        ("", []),
        ("...", []),
    ],
)
def test_words_of_german_chinese_and_emoji(text: str, words: list[str]) -> None:
    assert split_words(text) == words
