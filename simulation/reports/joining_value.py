"""Value of joining: results of runs, beside the values that left the silos for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from client_service.boundary.call_attempts import Attempt, list_attempts
from client_service.federation.messages import EarlierRun, QualityOut
from shared.message import Message
from shared.method.declaration import Declaration
from shared.words import count_noun
from simulation.reports.averages import USER_MEAN, user_mean
from simulation.reports.report import floor_means

ALONE, STRICT, COMMON = "alone", "LPSFed, strict boundary", "with the common basis"
CONTENT, TRANSITIONS = "with common basis and text", "with transitions of all silos"
GRAM = "with Gram sums of all silos"
RunResult = QualityOut | EarlierRun
Ledgers = Mapping[str, Sequence[Mapping[str, Any]]]


class ServingOption(Message):
    """One way to serve all users, with its figures and its cost in values sent.

    figures: user means by key. crossed: values that left each client, in words. bytes: of all bodies of its runs, at
    the client that has sent most.
    """

    name: str
    figures: dict[str, float | None]
    crossed: str
    bytes: int


class ShopGain(Message):
    """Gain of a silo by the last run, on its own test items.

    ratio: together over alone with its 95 % interval: low, mid, high; None if the users are too few. lone: no other
    silo has any of its items.
    """

    name: str
    measure: str
    users: int
    alone: float
    together: float
    ratio: tuple[float, float, float] | None
    lone: bool


def shop_gains(qualities: Mapping[str, QualityOut], lone: Collection[str]) -> tuple[ShopGain, ...]:
    """Collects each silo's gain by its last run; one without test items is left out."""
    found = []
    for name, quality in sorted(qualities.items()):
        compared = quality.comparison
        if compared is None or not compared.groups:
            continue
        whole = compared.groups[0]
        ratio = None if whole.ratio is None else (whole.ratio.low, whole.ratio.mean, whole.ratio.high)
        means = {"alone": whole.alone.mean, "together": whole.federated.mean}
        said = {"measure": compared.measure, "users": whole.users, "ratio": ratio, "lone": name in lone}
        found.append(ShopGain(name=name, **said, **means))
    return tuple(found)


def local_options(report: Mapping[str, Any]) -> list[ServingOption]:
    """Returns the baselines without a federation: the floors, and each silo's untrained model."""
    known = {name: floor_means(figures, USER_MEAN) for name, figures in report["floors"].items()}
    known[ALONE] = report["alone"]
    return [
        ServingOption(name=name, figures=means, crossed="nothing", bytes=0) for name, means in known.items() if means
    ]


def federated_option(
    name: str, results: Sequence[RunResult], runs: Sequence[str], ledgers: Ledgers, declaration: Declaration
) -> ServingOption:
    """Returns the figures of a run, and the values sent for it."""
    tested = [result.test or {} for result in results]
    users = [result.test_users for result in results]
    made = {client: _list_sent(ledger, runs) for client, ledger in ledgers.items()}
    first = next(iter(made.values()), [])
    crossed = (_describe_run([one for one in first if one.run == run], declaration) for run in runs)
    return ServingOption(
        name=name,
        figures=user_mean(sorted({key for figures in tested for key in figures}), tested, users),
        crossed="; ".join(crossed),
        bytes=max((sum(one.bytes for one in calls) for calls in made.values()), default=0),
    )


def _list_sent(ledger: Sequence[Mapping[str, Any]], runs: Sequence[str]) -> list[Attempt]:
    return [one for one in list_attempts(ledger) if one.run in runs and one.bytes]


def _describe_run(made: Sequence[Attempt], declaration: Declaration) -> str:
    """Describes the values of each update of a run, by the ledger."""
    updates = [one for one in made if one.call == "update"]
    if not updates:
        return "nothing"
    names, times = updates[-1].tensor_names, len({one.round for one in updates})
    fields = _describe_fields(sorted(names), declaration.with_tensors(names).scalars)
    return f"{fields}, in {count_noun(times, 'round')}"


def _describe_fields(tensors: Sequence[str], scalars: Sequence[str]) -> str:
    """Groups tensors whose names begin alike: an MLP is four."""
    counts = Counter(name.partition(".")[0] for name in tensors)
    alike = [
        f"{begin} ({count_noun(count, 'tensor')})"
        if count > 2
        else ", ".join(name for name in tensors if name.startswith(f"{begin}."))
        for begin, count in counts.items()
    ]
    return ", ".join([*alike, *scalars])
