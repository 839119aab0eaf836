"""Verdicts on claims of the paper: whether each row is above those it should be.

Claims stand in paper.toml beside the paper's figures; verdicts are always computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.groups import STRUCTURE, group_value, structure_groups
from benchmarks.harness.plan import FLOORS, Claim
from benchmarks.harness.statistics import Comparison, Verdict, compare_pairs
from benchmarks.harness.summary import Column, Sample
from benchmarks.harness.tables import format_number, markdown_lines
from client_service.evaluation.metrics import LABELS, PRIMARY
from shared.words import count_noun

HOLDS, FAILS = "**holds**", "**does not hold**"
SO_FAR, UNPROVEN, AGAINST = "holds so far", "points that way, unproven", "points the other way, unproven"
UNSEEN, TOO_FEW = "not seen", "too few clients to tell"
SIZES = frozenset(name for name, _ in STRUCTURE)
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
A claim over several rows is that of being ahead of each of them, so that each has to show it by itself, and no p is
corrected here: *{HOLDS.strip("*")}* where all do, by the rule for verdicts above; *{SO_FAR}* where all do that are
measured; *{UNPROVEN}* where all are behind it but not all by a p below .05; *{UNSEEN}* where one is level with it;
*{AGAINST}* and *{FAILS.strip("*")}* where one is ahead of it. A ratio holds where both metrics reach it at the client
mean; it is no test. Differences are client means, with their 95 % interval. What is not measured stands last, and is
evidence of nothing.
"""


@dataclass(frozen=True)
class Finding:
    """One row of the section; without a verdict if nothing was measured."""

    table: str
    says: str
    data: str
    found: str
    verdict: str

    def table_row(self) -> list[str]:
        """Returns the finding as cells of the section's table."""
        return [self.says, f"[{self.table}](#{self.table})", self.data, self.found, self.verdict]


def judge_claims(table: str, claims: Sequence[Claim], columns: Sequence[Column]) -> list[Finding]:
    """Returns a finding for every claim of a table on each of its data sets."""
    return [
        Finding(table, claim.says, column.name, *judge_claim(claim, column)) for claim in claims for column in columns
    ]


def claims_section(findings: Iterable[Finding]) -> list[str]:
    """Renders the section: first findings, then claims that are not measured."""
    every = list(findings)
    lines = [INTRODUCTION, *markdown_lines(HEAD, (finding.table_row() for finding in every if finding.verdict))]
    missing = _missing_lines(every)
    return [*lines, "Not measured:", "", *missing, ""] if missing else lines


def _missing_lines(every: Sequence[Finding]) -> list[str]:
    """Lists the claims that are not measured, by table.

    A data set without any measured claim is named once.
    """
    claims: dict[str, list[str]] = {}
    without: dict[tuple[str, str], list[str]] = {}
    for finding in every:
        claims.setdefault(finding.table, []).append(finding.says)
        if not finding.verdict:
            without.setdefault((finding.table, finding.data), []).append(finding.says)
    grouped: dict[tuple[str, str], list[str]] = {}
    for (table, data), says in without.items():
        what = "every claim" if set(says) == set(claims[table]) else "; ".join(says)
        grouped.setdefault((table, what), []).append(data)
    return [f"- {table} ({', '.join(data)}): {what}" for (table, what), data in grouped.items()]


def judge_claim(claim: Claim, column: Column) -> tuple[str, str]:
    """Returns finding and verdict of a claim, both empty if nothing was measured."""
    if claim.least is not None:
        return _judge_ratio(claim.row, claim.least, column)
    wanted = sorted(column.floors) if claim.over == (FLOORS,) else list(claim.over)
    known = [label for label in wanted if {label, claim.row} <= column.rows.keys()]
    pairs = {label: column.pair_rows(claim.row, label, lambda sample: _claim_figures(sample, claim)) for label in known}
    comparisons: dict[str, Comparison] = {}
    for label, pair in pairs.items():  # one by one, so that Holm's correction has nothing to correct
        comparisons |= compare_pairs({label: pair})
    if not comparisons:
        return "", ""
    missing = [label for label in wanted if label not in comparisons]
    runs = count_noun(len(column.rows[claim.row]), "run")
    return f"{_verdict_text(comparisons, missing)}; {runs}", verdict_of(comparisons.values(), whole=not missing)


def _claim_figures(sample: Sample, claim: Claim) -> dict[str, float]:
    """Returns figures of the claim's clients; NaN for one without users in the group."""
    if not claim.part:
        return sample.by_client(claim.metric)
    if claim.part in SIZES:
        return {client["client"]: client[claim.metric] for client in structure_groups(sample.clients)[claim.part]}
    return {client["client"]: _group_figure(client, claim) for client in sample.clients}


def _group_figure(client: Mapping[str, Any], claim: Claim) -> float:
    kind, group = claim.part.split("/")
    return group_value(client, kind, group, claim.metric)


def _judge_ratio(row: str, least: float, column: Column) -> tuple[str, str]:
    """Compares a row with the best floor of each partition, in every metric.

    The ratios are as measured, not as rounded.
    """
    every = {metric: column.mean_ratio(row, metric, column.best_floors(metric)) for metric in column.metrics}
    ratios = {metric: value for metric, value in every.items() if value is not None}
    if not ratios or None in every.values():
        return "", ""
    description = ", ".join(
        f"{LABELS[metric].title} {value:.4f} x{_user_ratio(row, metric, column)}" for metric, value in ratios.items()
    )
    partitions = count_noun(len(column.by_partition(row, PRIMARY)), "partition")
    finding = f"{description}; {partitions}, {count_noun(len(column.rows[row]), 'run')}"
    return finding, HOLDS if min(ratios.values()) >= least else FAILS


def _user_ratio(row: str, metric: str, column: Column) -> str:
    """Returns the ratio of user means, where test users are counted."""
    mean = Sample.user_mean
    ratio = column.mean_ratio(row, metric, column.best_floors(metric, mean), mean)
    return "" if ratio is None else f" (user mean {ratio:.4f} x)"


def verdict_of(comparisons: Iterable[Comparison], *, whole: bool) -> str:
    """Returns the worst verdict of several comparisons that should all be ahead.

    whole: whether none is missing.
    """
    verdicts = {comparison.verdict for comparison in comparisons}
    worst = {"behind": FAILS, "behind, unproven": AGAINST, "no difference seen": UNSEEN, "too few pairs": TOO_FEW}
    for verdict, said in worst.items():
        if verdict in verdicts:
            return said
    return UNPROVEN if "ahead, unproven" in verdicts else HOLDS if whole else SO_FAR


def _verdict_text(comparisons: Mapping[str, Comparison], missing: Sequence[str]) -> str:
    """Lists the rows by verdict, each with its difference."""
    parts = []
    for verdict in ORDER:
        same = {label: comparison for label, comparison in comparisons.items() if comparison.verdict == verdict}
        rows = [f"{label} {_difference_text(comparison)}" for label, comparison in same.items()]
        parts += [f"{verdict}: {', '.join(rows)}"] if rows else []
    if missing:
        parts.append(f"not measured: {', '.join(missing)}")
    return "; ".join([*parts, f"{max(comparison.units for comparison in comparisons.values())} units"])


def _difference_text(comparison: Comparison) -> str:
    sign = "+" if comparison.difference >= 0 else ""
    low, high = comparison.low, comparison.high
    span = f" on {comparison.units} units" if math.isnan(low) else f" [{format_number(low)}, {format_number(high)}]"
    return f"{sign}{format_number(comparison.difference)}{span}"
