"""Baselines without training, a silo at a time, and the ceiling above them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.data.session_files import load_session_shard
from client_service.data.sessions import TRAIN, SessionShard
from client_service.evaluation.metrics import Measures
from client_service.evaluation.ranking import TopItems, measure_test
from client_service.evaluation.session_ranking import build_floors, measure_prefixes
from client_service.models.initial_filter import Filter
from client_service.training.filter_search import CLOSED_FORMS, best_filter, closed_form_tops, popularity_top
from client_service.training.fusion_search import fused_top
from client_service.training.spectrum_cache import cached_spectrum
from client_service.training.transition_scores import score_by_transitions
from shared.files import replace_file
from shared.method.spectrum import Spectrum
from simulation.experiments.experiment import Experiment
from simulation.experiments.pooled import pool_items, pool_shards
from simulation.progress import count_bar

FLOORS = ("popularity", *CLOSED_FORMS)
START = "start"  # a silo's own fused closed forms before any training: it shows the gain of training, and is no floor
VERSION = 4  # of the figures: raise it with every change of code that changes one, so that no kept file answers for it
POOLED_ITEMS = 25_000  # most items in all silos for the ceiling
POOLED_SCORES = 400_000_000  # most users x items of all silos for the ceiling


class Digested(Protocol):
    """Shard of any kind, with a name and a digest."""

    @property
    def name(self) -> str:
        """Silo's name."""

    @property
    def digest(self) -> str:
        """Digest of the silo's content."""


ByName = dict[str, Measures | None]
"""Test quality by the name of a floor, or of a client; None for one that does not fit in memory."""
KEPT = TypeAdapter(ByName)


@dataclass(frozen=True)
class Bounds:
    """Bounds of the trained model: floors below it and a ceiling above it.

    floors: by client, every floor and the start. ceiling: by client, the closed form on the data of all silos; None
    if it was left out. notes: why something was left out.
    """

    floors: dict[str, ByName]
    ceiling: ByName | None = None
    notes: tuple[str, ...] = ()


NO_BOUNDS = Bounds(
    {}, None, ("Floors, the untrained start and the centralised closed form were left out (--no-floors).",)
)


def measure_floors(shard: Shard, cutoff: int, cache: Path | None) -> ByName:
    """Measures every floor and the untrained model on one shard's test data.

    None if EASE does not fit into memory.
    """
    tops = floor_tops(shard, cutoff, cache)
    return {name: None if top is None else measure_test(shard, top) for name, top in tops.items()}


def floor_tops(shard: Shard, cutoff: int, cache: Path | None) -> dict[str, TopItems | None]:
    """Computes the lists of every floor and of the untrained model.

    Each has the settings that validation items choose.
    """
    spectrum = cached_spectrum(shard, cutoff, cache)
    chosen = best_filter(shard, spectrum).choice
    return {**closed_tops(shard, spectrum, chosen), START: fused_top(shard, spectrum, chosen)}


def closed_tops(shard: Shard, spectrum: Spectrum, chosen: Filter) -> dict[str, TopItems | None]:
    """Computes the lists of every floor; chosen: the filter that validation prefers."""
    return {"popularity": popularity_top(shard), **closed_form_tops(shard, spectrum, chosen)}


def measure_all_floors(
    shards: Sequence[Path],
    cutoff: int,
    *,
    cache_folder: Callable[[Path], Path | None],
    observe: Callable[[str], None],
    kept: Path | None = None,
) -> dict[str, ByName]:
    """Measures the floors of every shard, by client.

    `observe` is called with the name of each shard that is done. kept: a folder in which they are looked for first, and
    stored for the next time.
    """
    floors = {}
    for path in shards:
        shard, cache = load_shard(path), cache_folder(path)
        place = figures_path(kept, path.name, (shard,), cutoff)
        floors[path.name] = load_or_measure(place, partial(measure_floors, shard, cutoff, cache))
        observe(path.name)
    return floors


def measure_ceiling(shards: Sequence[Path], cutoff: int, kept: Path | None = None) -> ByName:
    """Measures each client's lists by the closed form on the pooled data.

    The silo's own items alone are ranked.
    """
    parts = [load_shard(path) for path in shards]
    return load_or_measure(figures_path(kept, "pooled", parts, cutoff), partial(_measure_pooled, parts, cutoff))


def describe_pooling_limit(shards: Sequence[Path]) -> str | None:
    """Explains why the pooled ceiling of these shards is left out; None if it fits."""
    parts = [load_shard(path) for path in shards]
    users, items = sum(len(part.user_ids) for part in parts), len(pool_items(parts))
    if items <= POOLED_ITEMS and users * items <= POOLED_SCORES:
        return None
    limit = f"its limit of {POOLED_ITEMS:,} items and {POOLED_SCORES:,} pairs of a user and an item"
    return f"The centralised closed form was left out: {users:,} users and {items:,} items in all, more than {limit}."


def _measure_pooled(parts: Sequence[Shard], cutoff: int) -> ByName:
    pooled, slices = pool_shards(parts)
    spectrum = cached_spectrum(pooled, cutoff, None)
    top = fused_top(pooled, spectrum, best_filter(pooled, spectrum).choice)
    count = len(pooled.item_ids)
    return {one.client: measure_test(one.shard, one.restrict_lists(top, count)) for one in slices}


def figures_path(folder: Path | None, name: str, parts: Sequence[Digested], kind: int | str) -> Path | None:
    """Returns the file of these shards' figures; None without a folder to keep them."""
    if folder is None:
        return None
    digest = hashlib.sha256(" ".join(f"{part.name} {part.digest}" for part in parts).encode()).hexdigest()
    return folder / name / f"floors-{VERSION}-{digest[:16]}-{kind}.json"


def load_or_measure(path: Path | None, measure: Callable[[], ByName]) -> ByName:
    """Returns the stored figures of a file, or measures and stores them.

    They are stored where the folder can be written.
    """
    if path is None:
        return measure()
    try:
        return KEPT.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        found = measure()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, KEPT.dump_json(found))
    except OSError:
        pass
    return found


def measure_bounds(experiment: Experiment, *, shown: bool) -> Bounds:
    """Measures the floors of every shard, and the ceiling of small ones."""
    shards, cutoff, kept = experiment.shards, experiment.method.cutoff, experiment.floors_folder
    reason = describe_pooling_limit(shards)
    with count_bar("baselines", len(shards) + (reason is None), shown=shown) as done:
        floors = measure_all_floors(shards, cutoff, cache_folder=experiment.cache_folder, observe=done, kept=kept)
        ceiling = measure_ceiling(shards, cutoff, kept) if reason is None else None
        if reason is None:
            done("all silos' data")
    return Bounds(floors, ceiling, () if reason is None else (reason,))


def measure_session_bounds(experiment: Experiment, *, shown: bool) -> Bounds:
    """Measures the floors of every session shard, and its own transitions.

    There is no ceiling: a network on all silos' sessions is a run of its own.
    """
    found: dict[str, ByName] = {}
    with count_bar("baselines", len(experiment.shards), shown=shown) as done:
        for path in experiment.shards:
            shard = load_session_shard(path)
            alone = measure_prefixes(score_by_transitions(shard, None).score, shard.test, len(shard.item_ids))
            found[path.name] = {**measure_own_floors(shard), START: alone}
            done(path.name)
    return Bounds(found)


def measure_own_floors(shard: SessionShard) -> dict[str, Measures | None]:
    """Measures floors on the shard's test examples, with its own items as candidates."""
    clicks, starts = shard.split_sessions(TRAIN)
    items = len(shard.item_ids)
    floors = build_floors(clicks, starts, items)
    return {name: measure_prefixes(floor, shard.test, items) for name, floor in floors.items()}
