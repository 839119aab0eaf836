"""What the paper says in words, beside what the rows of the device tables say of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from benchmarks.fedga.rows import Row
from benchmarks.fedga.sets import NAMES
from benchmarks.fedga.statistics import NOT_MEASURED, compare_methods, group_cells

CLAIMS = (
    ("FedGA over FedAvg", "up to +166.59 % HR@20, +146.23 % MRR@20", "fedga", "fedavg", "above"),
    ("FedGA over FedYogi", "+1.49 % HR@20, +2.4 % MRR@20", "fedga", "fedyogi", "above"),
    ("FedProx slightly under FedAvg", "", "fedprox", "fedavg", "below"),
    ("FedAdam + DRA over FedAdam", "+12.55 % HR@20, +16.61 % MRR@20", "adam + DRA", "fedadam", "above"),
    ("FedYogi + DRA over FedYogi", "MRR slightly", "yogi + DRA", "fedyogi", "above"),
    ("C-SME alone over FedAdam (clip)", "", "clip, no DRA", "fedadam", "above"),
    ("C-SME alone over FedAdam (ramp)", "", "ramp, no DRA", "fedadam", "above"),
    ("C-SME alone under FedYogi (clip)", "", "clip, no DRA", "fedyogi", "below"),
    ("C-SME alone under FedYogi (ramp)", "", "ramp, no DRA", "fedyogi", "below"),
    ("FedGA over C-SME alone (clip)", "", "fedga", "clip, no DRA", "above"),
    ("FedGA over C-SME alone (ramp)", "", "ramp", "ramp, no DRA", "above"),
)
KINDS = tuple(itertools.product(("srgnn", "tagnn"), ("sgd", "adam")))
"""Models, and what the devices train them with."""
SETTLED = 20  # the round from which on the notes expect a steady loss
HEAD = """## What the paper says

FedGA's tables are not in the text that we have: its figures are those that the text narrates. `holds`: the
difference is on the claimed side by its whole interval, for both measures; `does not hold`: it is on the
other side by the whole interval for one of them; `not seen`: neither.

| claim | the paper | data, model, devices by | ours, HR@20 / MRR@20 | verdict |
| --- | --- | --- | --- | --- |"""


def write_claims(rows: Sequence[Row]) -> str:
    """The table of claims, for every data set and model that has both sides; and how steady the losses were."""
    lines = [HEAD]
    for data, name in NAMES.items():
        for model, optimiser in KINDS:
            own = [row for row in rows if (row["data"], row["model"], row["optimiser"]) == (data, model, optimiser)]
            lines += _claims_of(own, f"{name}, {model}, {optimiser}")
    return "\n".join([*lines, "", *_describe_losses(rows), ""])


def _claims_of(rows: Sequence[Row], where: str) -> list[str]:
    cells, lines = group_cells(rows, "method"), list[str]()
    for claim, paper, ours, theirs, side in CLAIMS:
        found = [compare_methods(cells, ours, theirs, name) for name in ("hr20", "mrr20")]
        if (verdict := judge_sides([where_ for _, where_ in found], side)) != NOT_MEASURED:
            lines.append(f"| {claim} | {paper} | {where} | {' / '.join(said for said, _ in found)} | {verdict} |")
    return lines


def judge_sides(sides: Sequence[str], claimed: str) -> str:
    """One word for all measures."""
    if set(sides) == {claimed}:
        return "holds"
    if NOT_MEASURED in sides:
        return NOT_MEASURED
    return "does not hold" if set(sides) & ({"above", "below"} - {claimed}) else "not seen"


def _describe_losses(rows: Sequence[Row]) -> list[str]:
    """By how much the clients' loss rose above the least of the rounds before, from round SETTLED on, at most."""
    said = []
    for (data, model, optimiser, method), cell in group_cells(rows, "data", "model", "optimiser", "method").items():
        if method in ("fedavg", "fedadam", "fedyogi", "fedga"):
            losses = ([point["loss"] for point in row["curve"] if point["round"] >= SETTLED] for row in cell.values())
            rises = ", ".join(f"{100 * largest_rise(one):+.0f} %" for one in losses)
            said.append(f"| {NAMES[data]}, {model}, {optimiser} | {method} | {rises} |")
    head = [
        "How steady is the loss at the clients? Each seed's largest rise above the least loss of an earlier judged",
        "round, from round 20 on. (Losses of a round are of 20 drawn devices, so that they vary without any fault.)",
        "",
        "| data, model, devices by | method | largest rise |",
        "| --- | --- | --- |",
    ]
    return [*head, *said] if said else []


def largest_rise(losses: Sequence[float]) -> float:
    """The largest loss over the least one before it, minus 1; at least 0."""
    least, found = float("inf"), 0.0
    for loss in losses:
        found, least = max(found, loss / least - 1.0), min(least, loss)
    return found
