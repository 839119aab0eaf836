"""Compiles a shard of interactions into the folder that answers are read from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from client_service.compiled.arrays import save_folder
from client_service.compiled.shard import KIND, NO_TIME, CompiledHead, CompiledShard
from client_service.compiled.texts import compose, id_arrays, search_arrays, text_arrays
from client_service.data.events import row_numbers
from client_service.data.interactions import Shard
from client_service.text.item_features import attribute_columns, item_features, unmet_features
from client_service.text.search import feature_arrays
from client_service.text.search import search_arrays as index_titles
from shared.method.graph import degrees
from shared.method.parameters import Float32

Arrays = dict[str, NDArray[Any]]


def compile_shard(shard: Shard, serving: Path) -> Path:
    """Writes the shard's folder `shard-<digest>` in `serving`, or reuses an existing one."""
    return save_folder(serving, KIND, *_compile(shard))


def compile_in_memory(shard: Shard) -> CompiledShard:
    """Compiles a shard without a folder, for a silo whose trainer alone answers."""
    return CompiledShard(*_compile(shard))


def _compile(shard: Shard) -> tuple[CompiledHead, Arrays]:
    fresh = item_freshness(shard)
    met_times = shard.met_events is not None and "time" in shard.met_events.columns
    features = [] if shard.features is None else shard.features.get_columns()
    head = CompiledHead(
        task="items",
        name=shard.name,
        digest=shard.digest,
        kept_digest=shard.kept_digest,
        lists_digest=shard.lists_digest,
        users=len(shard.user_ids),
        items=len(shard.item_ids),
        rating=shard.rating,
        titles=shard.titles is not None,
        times="time" in shard.events.columns,
        met_times=met_times,
        freshness=fresh is not None,
        features=tuple((column.name, "text" if column.dtype == pl.String else "number") for column in features),
        unmet=0 if shard.unmet is None else len(shard.unmet),
    )
    arrays = {
        **id_arrays("users", shard.user_ids),
        **id_arrays("items", shard.item_ids),
        **_list_arrays("train", shard.train),
        **_list_arrays("known", shard.known_pairs),
        **_met_arrays(shard, times=met_times),
        "popularity": degrees(shard.train)[1].astype(np.float32),
    }
    if head.times:
        arrays |= _liked_arrays(shard)
    if fresh is not None:
        arrays["freshness"] = fresh
    if shard.titles is not None:
        arrays |= text_arrays("titles", shard.titles) | search_arrays("folded", shard.titles)
        arrays |= _search_arrays(shard)
    for place, column in enumerate(features):
        arrays |= _feature_arrays(f"feature-{place}", column)
    if shard.unmet is not None:
        arrays |= _unmet_arrays(shard, shard.unmet)
    return head, arrays


def _unmet_arrays(shard: Shard, unmet: pl.DataFrame) -> Arrays:
    """Builds the arrays of the unmet items."""
    titles, columns = unmet["title"].to_list(), unmet.drop("item", "title")
    found, features = index_titles(titles, attribute_columns(columns)), unmet_features(shard)
    if features is not None and (known := item_features(shard)) is not None:
        found |= feature_arrays(features, known.text_encoder)
    arrays = {
        **id_arrays("unmet", unmet["item"].to_list()),
        **text_arrays("unmet-titles", titles),
        **search_arrays("unmet-folded", titles),
        **{f"unmet-{name}": array for name, array in found.items()},
    }
    events = (
        shard.met_events
        if shard.met_events is not None
        else pl.DataFrame(schema=dict.fromkeys(("user", "item"), pl.String))
    )
    items = row_numbers(events["item"], unmet["item"])
    for name, users in (("met", shard.user_ids), ("met-only", sorted(shard.met_only_users))):
        rows = row_numbers(events["user"], pl.Series(users, dtype=pl.String))
        inside = (rows >= 0) & (items >= 0)
        arrays |= _pair_arrays(f"unmet-{name}", len(users), rows[inside], items[inside], None)
    for place, column in enumerate(columns.get_columns()):
        arrays |= _feature_arrays(f"unmet-feature-{place}", column)
    return arrays


def _search_arrays(shard: Shard) -> Arrays:
    """Makes the arrays by which items are searched that lack a searched word."""
    assert shard.titles is not None
    found, features = index_titles(shard.titles, attribute_columns(shard.features)), item_features(shard)
    return found if features is None else found | feature_arrays(features.values, features.text_encoder)


def item_freshness(shard: Shard) -> Float32 | None:
    """Computes the freshness of each item, (N,) in [0, 1].

    An item's freshness is the share of the items with a time that were first met no later than this one. An item
    without a time has 0. None if no training or validation interaction has a time.
    """
    if "time" not in shard.events.columns:
        return None
    known = shard.events.filter(pl.col("split").cast(pl.String) != "test", pl.col("time").is_not_null())
    if known.is_empty():
        return None
    first = known.group_by("item").agg(pl.col("time").min())
    found = np.zeros(len(shard.item_ids), dtype=np.float32)
    found[first["item"].to_numpy()] = first["time"].rank("max").to_numpy() / len(first)
    return found


def _list_arrays(name: str, pairs: sparse.csr_array) -> Arrays:
    return {f"{name}-indptr": pairs.indptr.astype(np.int64), f"{name}-indices": pairs.indices.astype(np.int32)}


def _pair_arrays(name: str, users: int, rows: NDArray[Any], items: NDArray[Any], times: pl.Series | None) -> Arrays:
    """Makes the arrays of lists from pairs in any order, with their times."""
    order = np.lexsort((items, rows))
    counts = np.bincount(rows, minlength=users)
    found: Arrays = {
        f"{name}-indptr": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        f"{name}-indices": items[order].astype(np.int32),
    }
    if times is not None:
        found[f"{name}-times"] = times.cast(pl.Int64).fill_null(NO_TIME).to_numpy()[order].astype(np.int64)
    return found


def _liked_arrays(shard: Shard) -> Arrays:
    users, items = (shard.events[name].to_numpy() for name in ("user", "item"))
    return _pair_arrays("liked", len(shard.user_ids), users, items, shard.events["time"])


def _met_arrays(shard: Shard, *, times: bool) -> Arrays:
    """Makes the arrays of met events, which are not positive.

    Users with a row have one set of lists. Users without a row have another, beside the arrays of their ids.
    """
    events = shard.met_events
    others = sorted(shard.met_only_users)
    if events is None:
        events = pl.DataFrame(schema={"user": pl.String, "item": pl.String})
    items = row_numbers(events["item"], pl.Series(shard.item_ids, dtype=pl.String))
    arrays = id_arrays("met-users", others)
    for name, users in (("met", shard.user_ids), ("met-only", others)):
        rows = row_numbers(events["user"], pl.Series(users, dtype=pl.String))
        inside = (rows >= 0) & (items >= 0)
        known = events["time"].filter(pl.Series(inside)) if times else None
        arrays |= _pair_arrays(name, len(users), rows[inside], items[inside], known)
    return arrays


def _feature_arrays(name: str, column: pl.Series) -> Arrays:
    if column.dtype != pl.String:
        return {name: column.cast(pl.Float64).fill_null(float("nan")).to_numpy().astype(np.float64)}
    values = sorted(column.drop_nulls().unique(), key=compose)  # in the order in which they are searched
    codes = row_numbers(column, pl.Series(values, dtype=pl.String))
    return {name: codes.astype(np.int32), **text_arrays(f"{name}-texts", values)}
