"""Outcomes of runs and the clients' ledgers -> what joining was worth: figures, and beside them what crossed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from client_service.boundary.crossings import Attempt, attempts
from shared.message import Message
from shared.method.declaration import Declaration
from shared.words import count_noun
from simulation.federation import Outcome
from simulation.floors import FLOORS, START

ALONE, STRICT, COMMON = "alone", "LPSFed, strict boundary", "with the common basis"
Ledgers = Mapping[str, Sequence[Mapping[str, Any]]]


class Way(Message):
    """One way to serve all users: figures at the user mean, by key; what left each client for it, in words and bytes.

    bytes: of all bodies of its runs, at the client that has sent most.
    """

    name: str
    figures: dict[str, float]
    crossed: str
    bytes: int


def own_ways(report: Mapping[str, Any]) -> list[Way]:
    """What needs nobody else: the floors, and each silo's own model before any training."""
    return [
        Way(name=name, figures=figures, crossed="nothing", bytes=0)
        for key, name in ({floor: floor for floor in FLOORS} | {START: ALONE}).items()
        if (figures := _floor_figures(report, key)) is not None
    ]


def federated_way(name: str, outcome: Outcome, runs: Sequence[str], ledgers: Ledgers, declaration: Declaration) -> Way:
    """What a run has given, and what left in these runs for it."""
    rows = [(quality.test or {}, quality.test_users) for quality in outcome.qualities.values()]
    made = {client: _made_in(ledger, runs) for client, ledger in ledgers.items()}
    first = next(iter(made.values()), [])
    crossed = (_describe_run([one for one in first if one.run == run], declaration) for run in runs)
    return Way(
        name=name,
        figures=_user_mean(rows, sorted({key for figures, _ in rows for key in figures})),
        crossed="; ".join(crossed),
        bytes=max((sum(one.bytes for one in calls) for calls in made.values()), default=0),
    )


def _floor_figures(report: Mapping[str, Any], floor: str) -> dict[str, float] | None:
    """At the user mean; None where some client has none."""
    users = {client["client"]: client["test_users"] for client in report["clients"]}
    rows = [(floors.get(floor), users[client]) for client, floors in report["floors_by_client"].items()]
    known = [(figures, count) for figures, count in rows if figures is not None]
    return _user_mean(known, list(report["user_mean"])) if known and len(known) == len(rows) else None


def _user_mean(rows: Sequence[tuple[Mapping[str, float], int]], keys: Sequence[str]) -> dict[str, float]:
    total = sum(users for _, users in rows) or 1
    return {key: sum(figures.get(key, 0.0) * users for figures, users in rows) / total for key in keys}


def _made_in(ledger: Sequence[Mapping[str, Any]], runs: Sequence[str]) -> list[Attempt]:
    return [one for one in attempts(ledger) if one.run in runs and one.bytes]


def _describe_run(made: Sequence[Attempt], declaration: Declaration) -> str:
    """What each update of a run held, by the ledger."""
    updates = [one for one in made if one.call == "update"]
    if not updates:
        return "nothing"
    names, times = updates[-1].tensor_names, len({one.round for one in updates})
    fields = _describe_fields(sorted(names), declaration.with_tensors(names).scalars)
    return f"{fields}, in {count_noun(times, 'round')}"


def _describe_fields(tensors: Sequence[str], scalars: Sequence[str]) -> str:
    """Tensors that begin alike together: an MLP is four."""
    counts = Counter(name.partition(".")[0] for name in tensors)
    alike = [
        f"{begin} ({count_noun(count, 'tensor')})"
        if count > 2
        else ", ".join(name for name in tensors if name.startswith(f"{begin}."))
        for begin, count in counts.items()
    ]
    return ", ".join([*alike, *scalars])
