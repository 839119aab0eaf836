"""`lpsfed break`: plants a fault in the compose federation, which the report must name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table
from rich.text import Text

from shared.errors import SettingsError
from shared.words import count_noun
from simulation.breaks.kinds import known_breaks
from simulation.reports.terminal import OUT, print_on_stderr

if TYPE_CHECKING:
    from audit.report import PrivacyReport
    from simulation.breaks.federation import ComposeFederation
    from simulation.breaks.kinds import Break

KINDS = known_breaks(4)  # as in the checked-in file; which silo a kind changes follows from the number of silos


def break_(
    kinds: Annotated[list[str] | None, typer.Argument(help=f"Kinds of fault: {', '.join(KINDS)}")] = None,
    list_kinds: Annotated[bool, typer.Option("--list", help="List the kinds and what each does")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the faults planted, to look at them")] = False,
    mend: Annotated[bool, typer.Option("--mend", help="Remove faults that --keep has left")] = False,
    project: Annotated[str | None, typer.Option(help="Compose project, if several federations run")] = None,
) -> None:
    """Plants a fault in the running Compose federation, which the report must name.

    The fault is removed afterwards: the states of all parts are as before. Exit code 1 if the report does not name
    a fault, or is not clean after the removal.
    """
    from simulation.breaks.engine import Engine, require_engine
    from simulation.breaks.federation import find_federation

    if list_kinds:
        return _print_kinds()
    _require_kinds(kinds or (), mend=mend)
    require_engine()
    federation = find_federation(Engine(print_on_stderr), project)
    all_named = mend or _plant_and_report(federation, kinds or (), keep=keep)
    holds = keep or _mend_and_report(federation)
    if not (all_named and holds):
        raise typer.Exit(1)


def _require_kinds(kinds: Sequence[str], *, mend: bool) -> None:
    if unknown := sorted({*kinds} - {*KINDS}):
        raise SettingsError(f"expected kinds of fault of {', '.join(KINDS)}, got {', '.join(unknown)}")
    if bool(kinds) == mend:
        raise SettingsError("expected kinds of fault, or --mend, or --list, got none or both")


def _print_kinds() -> None:
    headers = ("kind", "what is done, with four silos", "the report must name")
    table = Table(*(Column(header, overflow="fold") for header in headers), show_lines=True)
    for kind, listed in KINDS.items():
        table.add_row(kind, listed.description, "\n".join(listed.faults))
    OUT.print(table)


def _plant_and_report(federation: ComposeFederation, kinds: Sequence[str], *, keep: bool) -> bool:
    """Plants faults and prints which of them the report names; True for all."""
    from simulation.breaks import plant

    breaks = known_breaks(federation.silos)
    for kind in kinds:
        OUT.print(Text(kind, "bold"), f": {breaks[kind].description}", sep="")
    try:
        plant.plant_breaks(federation, kinds)
        plant.repeat_probes(federation, kinds)
        report = plant.make_report(federation)
    except BaseException:
        if not keep and plant.is_planted(federation):
            plant.mend_breaks(federation)
        raise
    return _print_faults(report, {kind: breaks[kind] for kind in kinds})


def _print_faults(report: PrivacyReport, breaks: Mapping[str, Break]) -> bool:
    """Prints the verdict and the lines that name each fault. True if none is missing."""
    from audit.console import plain_text
    from simulation.breaks import plant

    _print_verdict(report)
    matches = [(kind, *match) for kind, planted in breaks.items() for match in plant.match_faults(planted, report)]
    for kind, wanted, line in matches:
        shown = Text(f"not named: {wanted}", "bold red") if line is None else plain_text(line)
        OUT.print(f"- {kind}: ", shown, sep="", soft_wrap=True)
    more = {fault for finding in report.findings for fault in finding.faults} - {line for _, _, line in matches}
    if more:
        OUT.print(f"- and {count_noun(len(more), 'line')} more in the same report")
    return all(line is not None for _, _, line in matches)


def _print_verdict(report: PrivacyReport) -> None:
    OUT.print(Text(report.verdict, f"bold {'green' if report.held else 'red'}"))


def _mend_and_report(federation: ComposeFederation) -> bool:
    from simulation.breaks import plant

    plant.mend_breaks(federation)
    plant.repeat_probes(federation)
    report = plant.make_report(federation)
    _print_verdict(report)
    return report.held
