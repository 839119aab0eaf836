"""Session shards on disk from a folder, a CSV file, or generated clicks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from client_service.data.session_files import save_session_shard
from client_service.data.sessions import TRAIN, SessionShard
from shared.errors import SettingsError
from simulation.partitioning.sources import SUMMARY, USUAL_CLIENTS, Cut, Shards, number_silos
from simulation.progress import step
from simulation.sessions.cut import cut_sessions, divide_sessions, measure_divergence
from simulation.sessions.generator import generate_sessions, title_items
from simulation.sessions.read import read_sessions
from simulation.sessions.sessions import USUAL_RULES, Sessions, parse_rules

CLICKS = "clicks"
USUAL_CUT = "random"


def cut_session_shards(data: str, cut: Cut, folder: Path) -> Shards:
    """Reads, divides and writes sessions, with the summary beside the shards."""
    if cut.split is not None or cut.min_rating not in (None, "usual"):
        raise SettingsError("--split, --min-rating: expected none with sessions, which are split by time")
    if cut.scenario is not None:
        raise SettingsError(f"--scenario: expected none with sessions, got {cut.scenario}")
    method, clients = cut.method or USUAL_CUT, cut.clients or USUAL_CLIENTS
    read = _read_or_generate(data, cut)
    with step("dividing the sessions"):
        sessions, owners = cut_sessions(read, method, clients, cut.number)
        shards = _name_shards(divide_sessions(sessions, owners), sessions, generated=data == CLICKS)
        for shard in shards:
            save_session_shard(folder / shard.name, shard)
        divergence = measure_divergence(sessions, owners)
    summary = _summarise(sessions, shards, {"method": method, "partition": cut.number, "divergence": divergence})
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1), encoding="utf-8")
    return Shards(tuple(folder / shard.name for shard in shards), summary)


def _read_or_generate(data: str, cut: Cut) -> Sessions:
    rules = parse_rules(cut.rules)
    if data != CLICKS:
        return read_sessions(Path(data), rules, cut.file_options)
    if rules != USUAL_RULES:
        raise SettingsError(f"--rule: expected none with {CLICKS}, which are generated as sessions")
    return generate_sessions(cut.split_seed)


def _name_shards(shards: list[SessionShard], sessions: Sessions, *, generated: bool) -> list[SessionShard]:
    titles = dict(title_items(list(sessions.items)).iter_rows()) if generated else {}
    names = (f"client-{number}" for number in number_silos(len(shards)))
    return [
        replace(shard, name=name, titles=tuple(titles[item] for item in shard.item_ids) if titles else None)
        for name, shard in zip(names, shards, strict=True)
    ]


def _summarise(sessions: Sessions, shards: list[SessionShard], how: dict[str, Any]) -> dict[str, Any]:
    clients = [_measure_shard(shard) for shard in shards]
    caption = f"mean Jaccard distance of two silos' items: {how['divergence']:.3f}"
    words = {"counted": "sessions", "caption": caption, "notes": list(sessions.notes)}
    return {"data": sessions.name, **how, "edges_kept": 1.0, "clients": clients, **words}


def _measure_shard(shard: SessionShard) -> dict[str, Any]:
    """Counts a shard's sessions and examples, in the fields of users and interactions.

    An example is a prefix with its next click.
    """
    examples = {"train": len(shard.train), "valid": len(shard.valid), "test": len(shard.test)}
    sessions = int(np.count_nonzero(shard.splits == TRAIN))
    return {"client": shard.name, "users": sessions, "items": len(shard.item_ids), **examples}
