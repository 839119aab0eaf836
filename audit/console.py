"""Reports and probes as tables for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from audit.checks.findings import SHOWN, AuditFinding
from audit.checks.probes import ProbeGroup
from audit.demonstration import BREAK, Demonstration
from audit.evidence.evidence import ProbeResult
from audit.report import ClientRound, PrivacyReport
from audit.terminal import OUT

SHORT = 12  # characters of a digest
MOST_FAULTS = 40  # faults that are listed one by one
GOOD, BAD = Text("held", "green"), Text("NOT HELD", "bold red")


def show_report(
    report: PrivacyReport, *, every_field: bool = False, every_probe: Iterable[tuple[str, ProbeResult]] = ()
) -> None:
    """Prints the whole report.

    every_field: the fields of every update, not of one. every_probe: probes to print one by one.
    """
    OUT.print(*_crossing_parts(report, every_field=every_field), sep="\n")
    if report.probes:
        OUT.print(probe_table("Every probe", every_probe) if every_probe else _kinds_table(report.probes))
    OUT.print(_findings_table(report.findings))
    for fault in _listed_faults(report.findings):
        OUT.print(Text(f"- {plain_text(fault)}", "red"))
    _print_verdict(report)
    OUT.print(Text("\nNot covered:"), *(Text(f"- {line}") for line in report.not_covered), sep="\n")


def show_break(demonstration: Demonstration) -> None:
    """Prints the deliberate break and the report that names it, in a few lines."""
    OUT.print(Text("1. A deliberate break", "bold"))
    client, answer = demonstration.client, demonstration.aggregator
    OUT.print(plain_text(f"{client} tries to send {BREAK} than declared, as a dishonest client would."))
    OUT.print(plain_text(f"- Its own gate: {demonstration.gate}."))
    OUT.print(
        plain_text(
            f"- Past its gate, signed with its key, at the aggregator: {answer}. The aggregator's record has it."
        )
    )
    OUT.print(plain_text("- The report without the probe's statement that it sent this update:"))
    OUT.print(Text(demonstration.red.verdict, "bold red"))
    for fault in (fault for finding in demonstration.red.findings for fault in finding.faults[:SHOWN]):
        OUT.print(Text.assemble("  ", Text(plain_text(fault).plain, "red")))
    OUT.print(plain_text(f"The probe of {client} sent it, as its evidence states. The report with all evidence:"))
    OUT.print()


def show_brief(report: PrivacyReport) -> None:
    """Prints a screen: how much crossed, an update's fields, the checks, and the verdict."""
    OUT.print(Text("2. What crossed", "bold"), _summary_table(report), sep="\n")
    OUT.print(*(_fields_table(report, entry) for entry in _first_latest_round(report.rounds)), sep="\n")
    for finding in report.findings:
        OUT.print(Text.assemble(GOOD if finding.held else BAD, f": {finding.expected}"))
    _print_verdict(report)
    OUT.print(f"{len(report.not_covered)} things are not covered: run without --brief to list them.")


def _print_verdict(report: PrivacyReport) -> None:
    for note in report.notes:
        OUT.print(Text(f"Note: {plain_text(note)}", "yellow"))
    OUT.print(Text(report.verdict, "bold green" if report.held else "bold red"))


def _summary_table(report: PrivacyReport) -> Table:
    table = _new_table("Every call of each client", ("client",), ("calls", "bytes up", "bytes down"))
    for name in dict.fromkeys(total.client for total in report.totals):
        own = [total for total in report.totals if total.client == name]
        sums = (sum(getattr(total, field) for total in own) for field in ("calls", "bytes_up", "bytes_down"))
        table.add_row(plain_text(name), *(f"{number:,}" for number in sums))
    return table


def _crossing_parts(report: PrivacyReport, *, every_field: bool) -> Iterator[RenderableType]:
    yield _totals_table(report)
    rounds = report.rounds if every_field else _first_latest_round(report.rounds)
    yield from (_fields_table(report, entry) for entry in rounds)
    yield _rounds_table(report.rounds)
    if report.refused:
        yield _refused_table(report)


def _new_table(title: str | Text, left: Sequence[str], right: Sequence[str] = (), caption: str | None = None) -> Table:
    """Makes a table with folded words to the left and numbers to the right."""
    table = Table(title=title, caption=caption, title_justify="left", caption_justify="left", box=box.SIMPLE)
    table.pad_edge, table.padding = False, (0, 1, 0, 0)
    for column in left:
        table.add_column(column, overflow="fold")
    for column in right:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _totals_table(report: PrivacyReport) -> Table:
    table = _new_table(
        "Every call: what left, and what came in",
        ("client", "call"),
        ("calls", "bytes up", "bytes down"),
    )
    before = ""
    for total in report.totals:
        if before and total.client != before:
            table.add_section()
        numbers = (f"{total.calls:,}", f"{total.bytes_up:,}", f"{total.bytes_down:,}")
        table.add_row(plain_text(total.client if total.client != before else ""), plain_text(total.call), *numbers)
        before = total.client
    return table


def _first_latest_round(rounds: Sequence[ClientRound]) -> Sequence[ClientRound]:
    """Returns the latest update of the first client that has one."""
    updates = [entry for entry in rounds if entry.sha256]
    return [entry for entry in updates if entry.client == updates[0].client][-1:] if updates else []


def _fields_table(report: PrivacyReport, shown: ClientRound) -> Table:
    title = f"All fields of the update of {shown.client}, {shown.run} round {shown.round}"
    table = _new_table(plain_text(title), ("field", "type", "shape"), ("bytes", "sha256 or value"))
    made = report.crossings[shown.client]
    update = next(crossing for crossing in made if crossing["call"] == "update" and crossing["sha256"] == shown.sha256)
    for tensor in update["tensors"]:
        table.add_row(*(plain_text(str(cell)) for cell in _tensor_row(tensor)))
    for name, value in update["scalars"].items():
        table.add_row(plain_text(name), "scalar", "one number", "", f"{value:.6g}")
    return table


def _tensor_row(tensor: dict[str, Any]) -> tuple[Any, ...]:
    shape = " x ".join(map(str, tensor.get("shape") or ()))
    kind = f"{tensor.get('dtype')}{', only up' if tensor.get('up_only') else ''}"
    return tensor.get("name"), kind, shape, tensor.get("bytes"), str(tensor.get("sha256"))[:SHORT]


def _rounds_table(rounds: Iterable[ClientRound]) -> Table:
    table = _new_table(
        "What left in each round, and what came in",
        ("client", "run"),
        ("round", "fields", "bytes up", "sha256", "receipt", "bytes down"),
    )
    for entry in rounds:
        fields = f"{entry.tensors} + {entry.scalars}" if entry.sha256 else "none"
        receipt = "the same" if entry.receipt else "none"
        numbers = (f"{entry.bytes_up:,}", entry.sha256[:SHORT], receipt, f"{entry.bytes_down:,}")
        table.add_row(
            plain_text(entry.client), plain_text(entry.run), str(entry.round), fields, *map(plain_text, numbers)
        )
    return table


def _refused_table(report: PrivacyReport) -> Table:
    table = _new_table("Refused by the aggregator, and on the ledger", ("client", "call", "run"), ("round", "status"))
    for body in report.refused:
        came = body.arrival
        table.add_row(body.client, came.call, came.run or "", str(came.round or ""), str(came.status))
    return table


def probe_table(title: str, probes: Iterable[tuple[str, ProbeResult]]) -> Table:
    """Makes a table of probes: what was tried, expected and observed."""
    table = _new_table(title, ("part", "try", "expected", "observed", ""))
    for part, result in probes:
        mark = GOOD if result.held else BAD
        table.add_row(part, *map(plain_text, (f"{result.kind}: {result.name}", result.expected, result.observed)), mark)
    return table


def _kinds_table(tried: Iterable[ProbeGroup]) -> Table:
    table = _new_table("What the probes tried", ("from", "try", "expected", "observed"), ("held",))
    for group in tried:
        style = "green" if group.held == group.probes else "bold red"
        count = Text(f"{group.held} of {group.probes}", style)
        table.add_row(
            group.role, plain_text(group.kind), plain_text(group.expected), plain_text("; ".join(group.observed)), count
        )
    return table


def _findings_table(findings: Iterable[AuditFinding]) -> Table:
    table = _new_table("What was checked", ("", "expected", "found", ""))
    for finding in findings:
        observed = Text(plain_text(finding.found).plain, "" if finding.held else "red")
        table.add_row(finding.name, finding.expected, observed, GOOD if finding.held else BAD)
    return table


def _listed_faults(findings: Iterable[AuditFinding]) -> Sequence[str]:
    """Lists faults of findings with many, up to MOST_FAULTS."""
    faults = [
        f"{finding.name}: {fault}" for finding in findings if len(finding.faults) > SHOWN for fault in finding.faults
    ]
    more = [f"and {len(faults) - MOST_FAULTS} more, all of them in the JSON"] if len(faults) > MOST_FAULTS else []
    return faults[:MOST_FAULTS] + more


def plain_text(text: str) -> Text:
    """Returns text without markup and control characters, which an attacker may have written."""
    return Text("".join(sign if sign.isprintable() else "?" for sign in text))
