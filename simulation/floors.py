"""Shards -> the floors of a table: what each silo could have alone, without training a network."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from client_service.learning.evaluate import TopItems, on_test
from client_service.learning.filters import best_ease, best_filter, best_low_pass, popularity_top
from client_service.learning.fusing import fused_top
from client_service.learning.quality import Measures
from client_service.learning.spectra import cached_spectrum
from client_service.shard import Shard, read_shard

FLOORS = ("popularity", "lowpass", "ridge", "ease")
START = "start"  # the fused score before any training: it tells what training adds, and is nobody's floor but our own


def measure_floors(shard: Shard, cutoff: int, cache: Path | None) -> dict[str, Measures | None]:
    """Test quality of every floor and of the untrained model on one shard; None where EASE does not fit in memory."""
    tops = floor_tops(shard, cutoff, cache)
    return {name: None if top is None else on_test(shard, top) for name, top in tops.items()}


def floor_tops(shard: Shard, cutoff: int, cache: Path | None) -> dict[str, TopItems | None]:
    """The lists of every floor and of the untrained model, each with the settings that validation items choose."""
    spectrum = cached_spectrum(shard, cutoff, cache)
    ease = best_ease(shard)
    ridge = best_filter(shard, spectrum)
    return {
        "popularity": popularity_top(shard),
        "lowpass": best_low_pass(shard, spectrum).top,
        "ridge": ridge.top,
        "ease": None if ease is None else ease.top,
        START: fused_top(shard, spectrum, ridge.choice),
    }


def measure_all_floors(
    shards: tuple[Path, ...], cutoff: int, *, cache_of: Callable[[Path], Path | None], observe: Callable[[str], None]
) -> dict[str, dict[str, Measures | None]]:
    """Floors of every shard, by client. `observe` is called with the name of each shard that is done."""
    floors = {}
    for path in shards:
        floors[path.name] = measure_floors(read_shard(path), cutoff, cache_of(path))
        observe(path.name)
    return floors
