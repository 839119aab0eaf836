"""What a table is held against -> what was found, in one line: the document's answer to "does it hold?".

A claim is a row that should be above others, as paper.toml says beside the paper's figures; nobody types a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.groups import STRUCTURE, by_structure
from benchmarks.harness.paper import Claim
from benchmarks.harness.plan import FLOORS
from benchmarks.harness.statistics import Comparison, Verdict, compare
from benchmarks.harness.summary import METRICS, Column, Sample
from benchmarks.harness.tables import markdown, number

HOLDS, FAILS = "**holds**", "**does not hold**"
UNPROVEN, UNSEEN, TOO_FEW = "points that way, unproven", "not seen", "too few clients to tell"
TITLES = {"recall": "Recall@20", "ndcg": "NDCG@20"}
LARGE_GROUPS = frozenset(name for name, _ in STRUCTURE)
HEAD = ("claim", "of", "data", "what was found", "verdict")
ORDER: tuple[Verdict, ...] = (
    "ahead",
    "ahead, unproven",
    "no difference seen",
    "behind, unproven",
    "behind",
    "too few pairs",
)
INTRODUCTION = f"""## What holds and what does not

Each claim is a comparison that the table's paper.toml names, made anew from what is measured; the tables have the rest.
*{HOLDS.strip("*")}*: ahead of every row that it names, by the rule for verdicts above, with Holm's correction over
these rows alone. *{UNPROVEN}*: ahead of all of them, but not of all with a p below .05. *{UNSEEN}*: level with one of
them at least. *{FAILS.strip("*")}*: behind one of them by the same rule, proven or not, or below the ratio that is
asked for. Differences are client means with their 95 % interval. A verdict is on the rows that are measured; what is
not measured stands last, and is evidence of nothing.
"""


@dataclass(frozen=True)
class Finding:
    """One row of the section. A claim that nothing was measured for has no verdict."""

    table: str
    says: str
    data: str
    found: str
    verdict: str

    def row(self) -> list[str]:
        return [self.says, f"[{self.table}](#{self.table})", self.data, self.found, self.verdict]


def findings(table: str, claims: Sequence[Claim], columns: Sequence[Column]) -> list[Finding]:
    """Every claim of a table on each of its data sets."""
    return [Finding(table, claim.says, column.name, *judged(claim, column)) for claim in claims for column in columns]


def written(found: Iterable[Finding]) -> list[str]:
    """The section as Markdown: what was found, then what is not measured."""
    every = list(found)
    lines = [INTRODUCTION, *markdown(HEAD, (one.row() for one in every if one.verdict))]
    missing = _missing(every)
    return [*lines, "Not measured:", "", *missing, ""] if missing else lines


def _missing(every: Sequence[Finding]) -> list[str]:
    """One line a table and set of claims: a data set for which none of a table's claims is measured is named once."""
    claims: dict[str, list[str]] = {}
    without: dict[tuple[str, str], list[str]] = {}
    for one in every:
        claims.setdefault(one.table, []).append(one.says)
        if not one.verdict:
            without.setdefault((one.table, one.data), []).append(one.says)
    grouped: dict[tuple[str, str], list[str]] = {}
    for (table, data), says in without.items():
        what = "every claim" if set(says) == set(claims[table]) else "; ".join(says)
        grouped.setdefault((table, what), []).append(data)
    return [f"- {table} ({', '.join(data)}): {what}" for (table, what), data in grouped.items()]


def judged(claim: Claim, column: Column) -> tuple[str, str]:
    """What was found and the verdict, both empty where nothing was measured."""
    if claim.least is not None:
        return _by_ratio(claim.row, claim.least, column)
    wanted = sorted(column.floors) if claim.over == (FLOORS,) else list(claim.over)
    others = {label: units(column.rows[label], claim) for label in wanted if label in column.rows}
    if claim.row not in column.rows:
        return "", ""
    found = compare(units(column.rows[claim.row], claim), others)
    if not found:
        return "", ""
    return _told(found, [label for label in wanted if label not in found]), verdict_of(found.values())


def units(samples: Sequence[Sample], claim: Claim) -> dict[Hashable, float]:
    """Figures by (partition, client), each the mean over seeds; a client without the part is left out."""
    values: dict[Hashable, list[float]] = {}
    for sample in samples:
        for client in _members(sample, claim.part):
            value = _figure(client, claim)
            if not math.isnan(value):
                values.setdefault((sample.partition, client["client"]), []).append(value)
    return {unit: math.fsum(of) / len(of) for unit, of in values.items()}


def _members(sample: Sample, part: str) -> list[dict[str, Any]]:
    return by_structure(sample.clients)[part] if part in LARGE_GROUPS else sample.clients


def _figure(client: Mapping[str, Any], claim: Claim) -> float:
    if not claim.part or claim.part in LARGE_GROUPS:
        return float(client[claim.metric])
    kind, group = claim.part.split("/")
    recall, ndcg, users = client.get("groups", {}).get(kind, {}).get(group, (0.0, 0.0, 0))
    return {"recall": recall, "ndcg": ndcg}[claim.metric] if users else math.nan


def _by_ratio(row: str, least: float, column: Column) -> tuple[str, str]:
    """To the best floor of each partition, both metrics: as measured, not as rounded."""
    found = {metric: column.ratio(row, metric, column.best_floors(metric)) for metric in METRICS}
    ratios = {metric: value for metric, value in found.items() if value is not None}
    if len(ratios) < len(METRICS):
        return "", ""
    told = ", ".join(f"{TITLES[metric]} {value:.4f} x" for metric, value in ratios.items())
    return told, HOLDS if min(ratios.values()) >= least else FAILS


def verdict_of(found: Iterable[Comparison]) -> str:
    """Of several comparisons, all of which should be ahead: the worst of them decides."""
    verdicts = {one.verdict for one in found}
    if any(one.startswith("behind") for one in verdicts):
        return FAILS
    if "no difference seen" in verdicts:
        return UNSEEN
    if "too few pairs" in verdicts:
        return TOO_FEW
    return HOLDS if verdicts == {"ahead"} else UNPROVEN


def _told(found: Mapping[str, Comparison], missing: Sequence[str]) -> str:
    """The rows by verdict, each with its difference."""
    parts = []
    for verdict in ORDER:
        rows = [f"{label} {_difference(one)}" for label, one in found.items() if one.verdict == verdict]
        parts += [f"{verdict}: {', '.join(rows)}"] if rows else []
    if missing:
        parts.append(f"not measured: {', '.join(missing)}")
    return "; ".join(parts) + f" ({max(one.units for one in found.values())} units)"


def _difference(one: Comparison) -> str:
    sign = "+" if one.difference >= 0 else ""
    span = "" if math.isnan(one.low) else f" [{number(one.low)}, {number(one.high)}]"
    return f"{sign}{number(one.difference)}{span}"
