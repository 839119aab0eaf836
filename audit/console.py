"""Reports and probes -> what a person sees in a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from audit.demonstration import BREAK, Demonstration
from audit.evidence import Probe
from audit.findings import SHOWN, Finding
from audit.probing import Tried
from audit.report import Report, Round

OUT = Console()
ERR = Console(stderr=True)
SHORT = 12  # characters of a digest
MOST_FAULTS = 40  # that are told one by one
GOOD, BAD = Text("held", "green"), Text("NOT HELD", "bold red")


def show(report: Report, *, every_field: bool = False, every_probe: Iterable[tuple[str, Probe]] = ()) -> None:
    """The whole report. The fields are those of one update, or of all; probes are told by kind, or one by one."""
    OUT.print(*_crossed(report, every_field=every_field), sep="\n")
    if report.probes:
        OUT.print(probe_table("Every probe", every_probe) if every_probe else _kinds(report.probes))
    OUT.print(_findings(report.findings))
    for fault in _untold(report.findings):
        OUT.print(Text(f"- {plain(fault)}", "red"))
    for note in report.notes:
        OUT.print(Text(f"Note: {plain(note)}", "yellow"))
    OUT.print(Text(report.verdict, "bold green" if report.held else "bold red"))
    OUT.print(Text("\nNot covered:"), *(Text(f"- {line}") for line in report.not_covered), sep="\n")


def show_break(found: Demonstration) -> None:
    """The deliberate break and the red report, in a few lines."""
    OUT.print(Text("1. A deliberate break", "bold"))
    OUT.print(plain(f"{found.client} tries to send {BREAK} than it has declared, as a dishonest client would."))
    OUT.print(plain(f"- Its own gate: {found.gate}."))
    OUT.print(plain(f"- Past its gate, signed with its key, at the aggregator: {found.aggregator}. That is on record."))
    OUT.print(plain("- The report, as long as nobody owns up to it:"))
    OUT.print(Text(found.red.verdict, "bold red"))
    for fault in (fault for one in found.red.findings for fault in one.faults[:SHOWN]):
        OUT.print(Text.assemble("  ", Text(plain(fault).plain, "red")))
    OUT.print(plain(f"It was the probe of {found.client}, and its evidence says so. With all the evidence:"))
    OUT.print()


def show_brief(report: Report) -> None:
    """A screen: how much crossed, what is in an update, what was checked, and the verdict."""
    OUT.print(Text("2. What crossed", "bold"), _sums(report), sep="\n")
    OUT.print(*(_fields(report, one) for one in _first_latest(report.rounds)), sep="\n")
    OUT.print(*(Text.assemble(GOOD if one.held else BAD, f": {one.expected}") for one in report.findings), sep="\n")
    for note in report.notes:
        OUT.print(Text(f"Note: {plain(note)}", "yellow"))
    OUT.print(Text(report.verdict, "bold green" if report.held else "bold red"))
    OUT.print(f"{len(report.not_covered)} things are not covered: the whole report, without --brief, names them.")


def _sums(report: Report) -> Table:
    table = _table("Every call of each client", ("client",), ("calls", "bytes up", "bytes down"))
    for name in dict.fromkeys(one.client for one in report.totals):
        own = [one for one in report.totals if one.client == name]
        sums = (sum(one.calls for one in own), sum(one.bytes_up for one in own), sum(one.bytes_down for one in own))
        table.add_row(plain(name), *(f"{number:,}" for number in sums))
    return table


def _crossed(report: Report, *, every_field: bool) -> Iterator[RenderableType]:
    yield _totals(report)
    rounds = report.rounds if every_field else _first_latest(report.rounds)
    yield from (_fields(report, one) for one in rounds)
    yield _rounds(report.rounds)
    if report.refused:
        yield _refused(report)


def _table(title: str | Text, left: Sequence[str], right: Sequence[str] = (), caption: str | None = None) -> Table:
    """Words to the left, folded where they are long; numbers to the right, whole."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE)
    table.pad_edge, table.padding = False, (0, 1, 0, 0)
    for column in left:
        table.add_column(column, overflow="fold")
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _totals(report: Report) -> Table:
    table = _table(
        "Every call: what left, and what came in",
        ("client", "call"),
        ("calls", "bytes up", "bytes down"),
    )
    before = ""
    for one in report.totals:
        if before and one.client != before:
            table.add_section()
        numbers = (f"{one.calls:,}", f"{one.bytes_up:,}", f"{one.bytes_down:,}")
        table.add_row(plain(one.client if one.client != before else ""), plain(one.call), *numbers)
        before = one.client
    return table


def _first_latest(rounds: Sequence[Round]) -> Sequence[Round]:
    """The latest update of the first client that has one."""
    updates = [one for one in rounds if one.sha256]
    return [one for one in updates if one.client == updates[0].client][-1:] if updates else []


def _fields(report: Report, of: Round) -> Table:
    title = f"All fields of the update of {of.client}, {of.run} round {of.round}"
    table = _table(plain(title), ("field", "type", "shape"), ("bytes", "sha256 or value"))
    made = report.crossings[of.client]
    update = next(one for one in made if one["call"] == "update" and one["sha256"] == of.sha256)
    for tensor in update["tensors"]:
        table.add_row(*(plain(str(cell)) for cell in _tensor(tensor)))
    for name, value in update["scalars"].items():
        table.add_row(plain(name), "scalar", "one number", "", f"{value:.6g}")
    return table


def _tensor(tensor: dict[str, Any]) -> tuple[Any, ...]:
    shape = " x ".join(map(str, tensor.get("shape") or ()))
    return tensor.get("name"), tensor.get("dtype"), shape, tensor.get("bytes"), str(tensor.get("sha256"))[:SHORT]


def _rounds(rounds: Iterable[Round]) -> Table:
    table = _table(
        "What left in each round, and what came in",
        ("client", "run"),
        ("round", "fields", "bytes up", "sha256", "receipt", "bytes down"),
    )
    for one in rounds:
        fields = f"{one.tensors} + {one.scalars}" if one.sha256 else "none"
        receipt = "the same" if one.receipt else "none"
        numbers = (f"{one.bytes_up:,}", one.sha256[:SHORT], receipt, f"{one.bytes_down:,}")
        table.add_row(plain(one.client), plain(one.run), str(one.round), fields, *(plain(cell) for cell in numbers))
    return table


def _refused(report: Report) -> Table:
    table = _table("Refused by the aggregator, and on the ledger", ("client", "call", "run"), ("round", "status"))
    for one in report.refused:
        came = one.arrival
        table.add_row(one.client, came.call, came.run or "", str(came.round or ""), str(came.status))
    return table


def probe_table(title: str, probes: Iterable[tuple[str, Probe]]) -> Table:
    """Each probe of a part: what was tried, what was expected, what came of it."""
    table = _table(title, ("part", "try", "expected", "observed", ""))
    for part, one in probes:
        mark = GOOD if one.held else BAD
        table.add_row(part, plain(f"{one.kind}: {one.name}"), plain(one.expected), plain(one.observed), mark)
    return table


def _kinds(tried: Iterable[Tried]) -> Table:
    table = _table("What the probes tried", ("from", "try", "expected", "observed"), ("held",))
    for one in tried:
        style = "green" if one.held == one.probes else "bold red"
        count = Text(f"{one.held} of {one.probes}", style)
        table.add_row(one.role, plain(one.kind), plain(one.expected), plain("; ".join(one.observed)), count)
    return table


def _findings(findings: Iterable[Finding]) -> Table:
    table = _table("What was checked", ("", "expected", "found", ""))
    for one in findings:
        found = Text(plain(one.found).plain, "" if one.held else "red")
        table.add_row(one.name, one.expected, found, GOOD if one.held else BAD)
    return table


def _untold(findings: Iterable[Finding]) -> Sequence[str]:
    """Of findings with many faults each one by itself, up to so many."""
    faults = [f"{one.name}: {fault}" for one in findings if len(one.faults) > SHOWN for fault in one.faults]
    more = [f"and {len(faults) - MOST_FAULTS} more, all of them in the JSON"] if len(faults) > MOST_FAULTS else []
    return faults[:MOST_FAULTS] + more


def plain(text: str) -> Text:
    """Text as it is: no markup, and nothing that a terminal would obey. What is shown may have been made up."""
    return Text("".join(sign if sign.isprintable() else "?" for sign in text))
