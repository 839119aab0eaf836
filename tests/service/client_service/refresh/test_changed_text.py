"""Answers follow what is known of items, also where nothing else of the shard has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import polars as pl
import pytest

from client_service.data.interaction_files import FEATURES, load_shard, save_shard
from client_service.data.interactions import Shard
from client_service.model_store.model_files import load_head
from client_service.settings import ClientSettings
from client_service.text.feature_file import FeatureFile, write_feature_file
from client_service.text.projection import unit_rows
from tests.support.given import Opened, Until
from tests.support.kept import keep_first_model
from tests.support.new_items import KINDS, write_shop
from tests.support.small import small_client
from tests.support.telling import all_listed, items_of, refresh

BUYER = "user-00"  # of boots


def tell(folder: Path, how: str, *, swapped: bool) -> Shard:
    """Says of each item which kind it is, and of new ones, if swapped, the other kind."""
    shard = replace(load_shard(folder), titles=None, features=None)
    kinds = np.array(["boots" in item for item in shard.item_ids])
    kinds ^= swapped & np.array([item.startswith("new") for item in shard.item_ids])
    if how == "attributes":
        save_shard(folder, replace(shard, features=pl.DataFrame({"kind": [KINDS[1 - kind] for kind in kinds]})))
    else:
        save_shard(folder, shard)
        noise = np.random.default_rng(0).normal(0.0, 0.1, (len(kinds), 4)).astype(np.float32)
        vectors = unit_rows(np.eye(2, 4, dtype=np.float32)[kinds.astype(np.int64)] + noise)
        write_feature_file(folder / FEATURES, FeatureFile(shard.item_ids, vectors, "hidden/4/1"))
    return load_shard(folder)


async def new_kind(http: httpx.AsyncClient) -> str:
    """Asks which kind the new item in a list of a buyer of boots has."""
    last = (await items_of(http, BUYER, "k=10"))["items"][-1]
    assert last["reason"] == "new"
    return str(last["item"]).removeprefix("new-").partition("-")[0]


def version(settings: ClientSettings) -> str:
    head = load_head(settings.models_directory)
    assert head is not None
    return head.version


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["attributes", "features"])
async def test_a_changed_text_is_in_answers_after_a_refresh_and_after_a_start(
    how: str, tmp_path: Path, opened: Opened, until: Until
) -> None:
    folder = write_shop(tmp_path / "shop")
    digest = tell(folder, how, swapped=False).digest
    settings = small_client(folder, tmp_path / "state")
    keep_first_model(settings)
    first = version(settings)
    async with opened(settings) as http:
        await until(lambda: all_listed(http))
        assert await new_kind(http) == "boots"
        assert (await refresh(http, until))["changed"] is False
        assert tell(folder, how, swapped=True).digest == digest
        assert (await refresh(http, until))["changed"]
        await until(lambda: all_listed(http))
        assert await new_kind(http) == "novel"
    refreshed = version(settings)
    assert refreshed != first
    async with opened(settings) as http:
        await until(lambda: all_listed(http))
        assert await new_kind(http) == "novel" and version(settings) == refreshed
    tell(folder, how, swapped=False)
    async with opened(settings) as http:
        await until(lambda: all_listed(http))
        assert await new_kind(http) == "boots" and version(settings) != refreshed


def test_a_shard_of_which_nothing_but_titles_is_known_has_no_digest_of_texts(tmp_path: Path) -> None:
    shard = replace(load_shard(write_shop(tmp_path / "shop")), features=None)
    assert shard.text_digest == ""
    save_shard(tmp_path / "shop", shard)
    again = load_shard(tmp_path / "shop")
    assert again.text_digest == "" and (again.digest, again.lists_digest) == (shard.digest, shard.lists_digest)
