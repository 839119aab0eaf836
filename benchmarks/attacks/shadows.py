"""Shadow shards, their updates, and the attacker's questions.

Updates are stored on the disk in blocks, so that a stopped run resumes.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from benchmarks.attacks.population import Bool, Draw, Int64, Population, draw_targets, make_shard
from benchmarks.attacks.silo import AttackedRun, Mode, Transcript, play_federation, play_run, start_client
from benchmarks.attacks.views import Replays, Transcripts
from benchmarks.harness.store import append_line, read_lines
from shared.method.graph import Float64

REVISION = 1  # raised by hand when a shadow's updates change without its configuration
BLOCK = 10  # shadows that an interruption can lose
CLIENTS = 3
WHAT = tuple(Transcripts.__annotations__)
Arrays = dict[str, Any]
Played = tuple[Transcript, Int64]
"""Transcript of a replay, and the replays that took part."""


@dataclass(frozen=True, eq=False)
class Series:
    """Shadows of one run, with the number of shadows in each mode.

    key: all settings that determine their updates.
    """

    name: str
    run: AttackedRun
    modes: Mapping[str, tuple[Mode, int]]
    key: Mapping[str, Any]

    @property
    def shadows(self) -> int:
        """Largest number of shadows of any mode."""
        return max(count for _, count in self.modes.values())


class Rows:
    """Rows of results for one configuration, each stored before the next is made."""

    def __init__(self, config: Mapping[str, Any], out: Path) -> None:
        self._path = out / f"rows-{_json_digest(config)}.jsonl"
        self._known = {line["name"]: line["row"] for line in read_lines(self._path)}

    def make_row(self, make: Callable[[], dict[str, Any]], **head: Any) -> dict[str, Any]:
        """Returns `head` with the result of `make`, which is stored for a resumed run."""
        name = "/".join(str(value) for value in head.values())
        if name not in self._known:
            self._known[name] = make()
            append_line(self._path, {"name": name, "row": self._known[name]})
        return {**head, **self._known[name]}


def draw_shadow(population: Population, seed: int, number: int) -> Draw:
    """Draws one shadow."""
    return draw_targets(population, np.random.default_rng([seed, number]))


def play_replays(series: Series, elsewhere: Population, federations: int, out: Path) -> Replays:
    """Runs federations on shards of another population, whose updates are replayed."""

    def make_federations() -> Arrays:
        transcripts = [
            transcript
            for number in range(federations)
            for transcript in _play_shadow_federation(series.run, elsewhere, number)
        ]
        return {
            "sent": np.stack([transcript.sent for transcript in transcripts]),
            "scalars": np.stack([transcript.scalars for transcript in transcripts]),
        }

    arrays = _cached_arrays(out / f"{_series_stem(series)}-replays.safetensors", make_federations)
    return Replays(arrays["sent"], arrays["scalars"])


def _play_shadow_federation(run: AttackedRun, elsewhere: Population, number: int) -> list[Transcript]:
    draws = [draw_shadow(elsewhere, run.seed, CLIENTS * number + client) for client in range(CLIENTS)]
    shards = [make_shard(elsewhere, draw).shard for draw in draws]
    return play_federation(run, [replace(shard, name=f"client-{n}") for n, shard in enumerate(shards, start=1)])


def collect_transcripts(series: Series, population: Population, others: Replays, out: Path) -> dict[str, Transcripts]:
    """Collects the updates of every shadow, by mode."""
    blocks = []
    for first in range(0, series.shadows, BLOCK):
        numbers = range(first, min(first + BLOCK, series.shadows))
        played = "-".join(str(min(max(count - first, 0), BLOCK)) for _, count in series.modes.values())
        # The numbers played in each mode are in the name: a block with other numbers is another file.
        path = out / f"{_series_stem(series)}-{first:05d}-{played}.safetensors"
        blocks.append(_cached_arrays(path, partial(_play_block, series, population, others, numbers)))
    return {mode: _join_blocks(mode, blocks) for mode in series.modes}


def _play_block(series: Series, population: Population, others: Replays, numbers: range) -> Arrays:
    """Runs some shadows; returns arrays by "<mode>/<name>"."""
    parts: defaultdict[str, list[Any]] = defaultdict(list)
    for number in numbers:
        for mode, (seen, who) in _play_shadow(series, population, others, number).items():
            for what, value in {**vars(seen), "others": who}.items():
                parts[f"{mode}/{what}"].append(value)
    return {name: np.stack(values) for name, values in parts.items()}


def _play_shadow(series: Series, population: Population, others: Replays, number: int) -> dict[str, Played]:
    """Runs one shadow in each of its modes, with a shared first round.

    Nothing has been released before that round.
    """
    run, rng = series.run, np.random.default_rng([series.run.seed, number, 1])
    who = rng.choice(len(others.sent), CLIENTS - 1, replace=False)
    beside = [Transcript(others.sent[k], others.sent[k], others.scalars[k]) for k in who]
    silo = start_client(make_shard(population, draw_shadow(population, run.seed, number)).shard, run)
    wanted = {name: mode for name, (mode, count) in series.modes.items() if number < count}
    return {name: (play_run(run, silo, beside, mode(rng)), who) for name, mode in wanted.items()}


def _join_blocks(mode: str, blocks: list[Arrays]) -> Transcripts:
    parts = {what: [block[f"{mode}/{what}"] for block in blocks if f"{mode}/{what}" in block] for what in WHAT}
    return Transcripts(**{what: np.concatenate(values) for what, values in parts.items()})


def _series_stem(series: Series) -> str:
    return f"{series.name}-{_json_digest(series.name, series.key)}"


def _json_digest(*values: object) -> str:
    return hashlib.sha256(json.dumps([REVISION, *values], sort_keys=True).encode()).hexdigest()[:12]


def _cached_arrays(path: Path, made: Callable[[], Arrays]) -> Arrays:
    """Loads the arrays of a file; computes and writes them first where it is missing."""
    if path.exists():
        return load_file(path)
    arrays = {name: np.ascontiguousarray(value) for name, value in made().items()}
    fresh = path.with_suffix(".partial")
    save_file(arrays, fresh)
    fresh.replace(path)
    return arrays


USER, PAIR, ITEM, SIZE, POPULAR, INTERACTIONS = "user", "pair", "item", "size", "popular", "interactions"
ASKED = {
    USER: "is this user in the shard?",
    PAIR: "is this interaction of a user who is in the shard?",
    ITEM: "is this item in the shard?",
    SIZE: "does the shard have more interactions than it usually has?",
    POPULAR: "has this item a larger share of the shard's interactions than it usually has?",
    INTERACTIONS: "which of all interactions that could be in the shard are?",
}


def answer_questions(population: Population, seed: int, attacked: slice, shadows: int) -> dict[str, Bool]:
    """Computes the true answers (S, T) to every question.

    Medians come from the shadows that are not attacked.
    """
    draws = [draw_shadow(population, seed, number) for number in range(shadows)]
    shards = [make_shard(population, draw) for draw in draws]
    graphs = [shard.training_graph(population.train.shape).toarray() > 0 for shard in shards]
    answers = {
        USER: np.stack([draw.users[population.coins] for draw in draws]),
        PAIR: np.stack([draw.pairs for draw in draws]),
        ITEM: np.stack([np.isin(population.rare, shard.items) for shard in shards]),
        SIZE: _above_median(np.stack([graph.sum(keepdims=True)[0] for graph in graphs]), attacked),
        POPULAR: _above_median(_item_shares(graphs, population), attacked),
        INTERACTIONS: _training_interactions(graphs, population),
    }
    return {question: answer.astype(bool) for question, answer in answers.items()}


def _item_shares(graphs: Sequence[Bool], population: Population) -> Float64:
    """Computes each item's share of interactions, (S, T), for items that are never missing."""
    items = np.setdiff1d(np.arange(population.train.shape[1]), population.rare)
    return np.stack([graph[:, items].sum(axis=0) / graph.sum() for graph in graphs])


def _above_median(values: Float64, attacked: slice) -> Bool:
    """Tells which values (S, T) lie above the attacker's own median."""
    own = np.ones(len(values), dtype=bool)
    own[attacked] = False
    return values > np.median(values[own], axis=0)


def _training_interactions(graphs: Sequence[Bool], population: Population) -> Bool:
    """Tells which training pairs of the population each shard has."""
    users, items = population.train.nonzero()
    return np.stack([graph[users, items] for graph in graphs])
