"""Data sets divided into clients, with the examples that evaluate their common model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from client_service.data.prefixes import Prefixes
from client_service.data.sessions import TEST, TRAIN, VALID, SessionShard
from client_service.evaluation.session_ranking import build_floors, measure_prefixes
from simulation.experiments.floors import measure_own_floors
from simulation.sessions.cut import cut_sessions, divide_sessions, measure_divergence
from simulation.sessions.read import read_sessions
from simulation.sessions.sessions import Sessions

SESSIONS_OF_A_DEVICE = 50
NAMES = {"yoochoose1_64": "Yoochoose 1/64", "diginetica": "Diginetica", "retailrocket": "Retailrocket"}
JUDGED = 4000  # validation examples that choose rounds and rates
ByName = dict[str, dict[str, float]]


@dataclass(frozen=True)
class SessionSet:
    """Divided sessions; divergence: JD of the cut's training sessions."""

    sessions: Sessions
    shards: list[SessionShard]
    divergence: float

    @cached_property
    def valid(self) -> Prefixes:
        """JUDGED validation examples, the same in every run."""
        examples = self.sessions.examples(VALID)
        return examples.select(np.random.default_rng(0).permutation(len(examples))[:JUDGED])

    @cached_property
    def test(self) -> Prefixes:
        """All test examples."""
        return self.sessions.examples(TEST)


def open_devices(folder: Path) -> SessionSet:
    """Opens devices of about SESSIONS_OF_A_DEVICE sessions that begin with near items."""
    sessions = read_sessions(folder)
    return divide(sessions, "device", int((sessions.splits == TRAIN).sum()) // SESSIONS_OF_A_DEVICE)


def divide(sessions: Sessions, cut: str, clients: int) -> SessionSet:
    """Divides sessions by a cut of CUTS, with seed 0."""
    kept, owners = cut_sessions(sessions, cut, clients, 0)
    return SessionSet(kept, divide_sessions(kept, owners), measure_divergence(kept, owners))


def measure_floors(sessions: Sessions, examples: Prefixes) -> ByName:
    """Measures the floors of all training sessions together, with all items as candidates."""
    train, items = sessions.of_split(TRAIN), len(sessions.items)
    found = build_floors(train.clicks, train.starts, items)
    return {name: dict(measure_prefixes(floor, examples, items).values) for name, floor in found.items()}


def measure_silo_floors(shard: SessionShard) -> ByName:
    """Measures the floors of one silo on its test examples and items."""
    found = measure_own_floors(shard)
    return {name: dict(measures.values) for name, measures in found.items() if measures is not None}


def parse_setting(text: str) -> tuple[str, Any]:
    """Parses NAME=JSON of a command line; other values are text."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value
