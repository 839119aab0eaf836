"""Items that nobody has met lie beside a shard's catalogue: kept whole, in no digest of models, and described alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from client_service.data.events import SPLIT_TYPE
from client_service.data.interaction_files import UNMET, load_shard, save_shard, shard_head
from client_service.data.interactions import Shard, build_shard, with_unmet_items
from client_service.data.shard_head import HEAD, load_head_if_present
from client_service.event_log.shard_update import add_items, append_events, erase_users
from client_service.sums.common_items import own_items
from client_service.text.item_features import item_features, unmet_features
from shared.errors import DataError
from shared.method.settings import MethodSettings

EVENTS = pl.DataFrame(
    {"user": ["u", "u", "v"], "item": ["a", "b", "b"], "split": ["train", "valid", "train"]},
    schema_overrides={"split": SPLIT_TYPE},
)
SOLD = pl.DataFrame({"item": ["a", "b"], "title": ["Red boots", "Blue boots"], "kind": ["boots", "boots"]})
OTHERS = pl.DataFrame(
    {
        "item": ["z", "a", "c", "nothing"],
        "title": ["Green boots", "Other", None, None],
        "kind": [None, "boots", "novel", None],
        "pages": [1.0, 2.0, 3.0, 4.0],
    }
)


def plain() -> Shard:
    return build_shard("shop", EVENTS, SOLD)


def test_items_with_a_row_and_items_of_which_nothing_is_known_are_left_out() -> None:
    shard = with_unmet_items(plain(), OTHERS)
    assert shard.unmet is not None and shard.unmet.columns == ["item", "title", "kind"]
    assert shard.unmet.rows() == [("c", None, "novel"), ("z", "Green boots", None)]
    assert with_unmet_items(plain(), OTHERS.filter(pl.col("item") == "a")).unmet is None
    assert with_unmet_items(plain(), None).unmet is None


def test_what_models_and_sums_know_of_a_shard_does_not_change(tmp_path: Path) -> None:
    before, after = plain(), with_unmet_items(plain(), OTHERS)
    assert (after.digest, after.events_digest) == (before.digest, before.events_digest)
    assert after.item_ids == before.item_ids and after.lists_digest != before.lists_digest
    assert own_items(after, MethodSettings()) == own_items(before, MethodSettings())
    one, two = (shard_head(shard).model_dump(exclude_none=True) for shard in (before, after))
    assert (one["format"], two["format"]) == ("lpsfed-shard/2", "lpsfed-shard/4")
    assert two.items() - one.items() == {
        ("format", "lpsfed-shard/4"),
        ("unmet", 2),
        ("unmet_digest", after.unmet_digest),
    }
    save_shard(tmp_path, after)
    stated = load_head_if_present(tmp_path)
    assert stated is not None and stated.lists_digest == after.lists_digest


def test_a_folder_keeps_them_and_refuses_others(tmp_path: Path) -> None:
    shard = with_unmet_items(plain(), OTHERS)
    save_shard(tmp_path, shard)
    kept = load_shard(tmp_path)
    assert kept.unmet is not None and shard.unmet is not None and kept.unmet.equals(shard.unmet)
    pl.read_parquet(tmp_path / UNMET).with_columns(title=pl.lit("x")).write_parquet(tmp_path / UNMET)
    with pytest.raises(DataError, match="expected unmet_digest"):
        load_shard(tmp_path)
    save_shard(tmp_path, plain())
    assert load_shard(tmp_path).unmet is None and "unmet" not in json.loads((tmp_path / HEAD).read_text("utf-8"))


@pytest.mark.parametrize("titles", [[1, 2], [["x"], ["y"]], [b"\xff", b"y"]])
def test_a_table_of_them_whose_titles_are_no_strings_is_refused_as_that_of_the_others_is(titles: list[object]) -> None:
    with pytest.raises(DataError, match=r"^unmet: expected strings in column 'title', got "):
        with_unmet_items(plain(), pl.DataFrame({"item": ["c", "z"], "title": titles}), Path("unmet"))
    values = pl.DataFrame({"item": ["c", "z"], "title": ["Red boots", None], "kind": titles[1:] * 2})
    if isinstance(titles[0], int):
        assert with_unmet_items(plain(), values).unmet is not None
    else:
        found = with_unmet_items(plain(), values).unmet
        assert found is not None and found.rows() == [("c", "Red boots", None)]


def test_what_is_told_of_one_later_leaves_what_its_own_table_says() -> None:
    """A file of titles alone takes away no attribute of an item that joins the catalogue."""
    titles = pl.DataFrame({"item": ["c", "other"], "title": ["A told title", "Nobody's"]})
    later = pl.DataFrame({"user": ["u"], "item": ["c"], "split": ["train"]})
    joined = append_events(with_unmet_items(plain(), OTHERS), later, Path("later"), titles)
    assert joined.items_with_ids().rows()[-1] == ("c", "A told title", "novel")
    told = add_items(with_unmet_items(plain(), OTHERS), titles)
    assert told.unmet is not None and told.unmet.rows() == [
        ("c", "A told title", "novel"),
        ("other", "Nobody's", None),
        ("z", "Green boots", None),
    ]


def test_a_liked_one_joins_the_catalogue_and_a_disliked_one_does_not() -> None:
    shard = with_unmet_items(plain(), OTHERS)
    later = pl.DataFrame({"user": ["u", "v"], "item": ["z", "c"], "split": ["train", "met"]})
    after = append_events(shard, later, Path("later"))
    row = after.item_row("z")
    assert row is not None and after.titles is not None and after.titles[row] == "Green boots"
    assert after.unmet is not None and after.unmet["item"].to_list() == ["c"] and after.item_row("c") is None
    gone = erase_users(after, ["v"])
    assert gone.unmet is not None and gone.unmet.equals(after.unmet)


def test_their_features_are_those_that_the_same_items_would_have_in_the_catalogue() -> None:
    shard = with_unmet_items(plain(), OTHERS)
    whole = build_shard(
        "shop", EVENTS, pl.concat([SOLD, OTHERS.filter(pl.col("item").is_in(["c", "z"]))], how="diagonal")
    )
    whole = replace(whole, features=None if whole.features is None else whole.features.select("kind"))
    found, expected = unmet_features(shard), item_features(whole)
    assert found is not None and expected is not None
    assert (found == expected.values[2:]).all() and found.any(axis=1).all()
    assert unmet_features(plain()) is None
