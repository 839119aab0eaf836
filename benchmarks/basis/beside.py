"""Two sub-tables: what noise in the sums costs, and methods that share items or nothing on the same users."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.basis.lines import (
    Line,
    epsilon_of,
    format_ratio,
    is_federation,
    mean_bytes,
    mean_of_users,
    place_of,
    verdict_on,
)
from benchmarks.common import render_table
from benchmarks.harness.tables import format_number
from client_service.evaluation.metrics import LABELS, PRIMARY

EASE_TARGETS = {("ml-1m", "random", 64, 8.0): 1.15}
"""The least ratio of together to EASE in each silo that a row with this epsilon should have."""
EXACT, EXACT_UNTRAINED = "exact", "exact, no training"
EPSILON = """The sums hide one user of one silo up to epsilon, at delta 1e-5
([privacy](privacy.md#noise-the-privacy-of-one-user)). *EASE*: that of each silo on its own data. *Without noise*: the
row of the same settings without epsilon."""
EPSILON_COLUMNS = (
    *("data, cut, silos", "epsilon", "EASE", "alone", "together", "together / EASE", "target", "together / alone"),
    *("without noise", "bytes up a silo"),
)
METHODS = f"""{LABELS[PRIMARY].title}, user mean, test items, the same users in the same silos. Alone, together and
centralised are those of the row *{EXACT}*. The methods have the settings and rounds of table 1 and share in the open;
*local* shares nothing, *LPSFed, strict* two MLPs and two numbers, the others tables of items, which start at noise.
Bytes: of a method its updates, of *together* all bodies of both runs; mean over the silos."""
METHOD_COLUMNS = ("data, cut, silos", "", "rounds", LABELS[PRIMARY].title, "to alone", "bytes up a silo")


def epsilon_table(lines: Sequence[Line]) -> list[str]:
    """Markdown of the rows with noise, by place and falling epsilon; nothing where there is none."""
    noised = sorted((line for line in lines if epsilon_of(line)), key=lambda one: (*place_of(one), -_epsilon(one)))
    if not noised:
        return []
    free = {place_of(line): line for line in lines if line["label"] == EXACT_UNTRAINED}
    rows = [_epsilon_row(line, free.get(place_of(line))) for line in noised]
    return ["### Accuracy against epsilon", EPSILON, render_table(EPSILON_COLUMNS, rows)]


def _epsilon(line: Line) -> float:
    return epsilon_of(line) or 0.0


def _epsilon_row(line: Line, free: Line | None) -> list[str]:
    found = line["extra"]
    ease, alone, together = found["floors"]["EASE"], found["alone"], found["together"]
    over = None if not ease else together / ease
    return [
        ", ".join(map(str, place_of(line))),
        f"{_epsilon(line):g}",
        *map(format_number, (ease, alone, together)),
        format_ratio(together, ease),
        verdict_on(over, EASE_TARGETS.get((*place_of(line), _epsilon(line)))),
        format_ratio(together, alone),
        "-" if free is None else format_number(free["extra"]["together"]),
        f"{mean_bytes(line, 'bytes_up'):,.0f}",
    ]


def method_table(lines: Sequence[Line]) -> list[str]:
    """Markdown of the methods and of what stands beside them, by place; nothing where no method is measured."""
    methods = [line for line in lines if is_federation(line)]
    bases = {place_of(line): line for line in lines if line["label"] == EXACT}
    places = sorted({place_of(line) for line in methods})
    rows = [
        row
        for place in places
        for row in _method_rows([line for line in methods if place_of(line) == place], bases.get(place))
    ]
    return ["### Beside methods that share items", METHODS, render_table(METHOD_COLUMNS, rows)] if rows else []


def _method_rows(methods: Sequence[Line], basis: Line | None) -> Iterator[list[str]]:
    """What stands beside the methods first, then the methods as configured."""
    place = ", ".join(map(str, place_of(methods[0])))
    alone = None if basis is None else basis["extra"]["alone"]
    if basis is not None:
        sent = {"alone": "0", "together": f"{mean_bytes(basis, 'bytes_up'):,.0f}", "centralised": "all data"}
        rounds = {"together": f"basis run + {basis['rounds']}"}
        for name, crossed in sent.items():
            value = basis["extra"][name]
            yield [place, name, rounds.get(name, "-"), format_number(value), format_ratio(value, alone), crossed]
    for line in methods:
        value = mean_of_users(line["clients"], lambda client: client[PRIMARY])
        sent_bytes = f"{mean_bytes(line, 'bytes_up'):,.0f}"
        yield [place, line["label"], str(line["rounds"]), format_number(value), format_ratio(value, alone), sent_bytes]
