"""The command line `lpsfed`. Results go to stdout (JSON with --json), bars and errors to stderr."""

from __future__ import annotations

from typing import Annotated

import typer

from audit.cli import privacy_report, probe
from audit.entry import run_command_line
from simulation.cli import (
    breaks,
    catalogue,
    deployment,
    experiments,
    joining,
    keys,
    ledger,
    members,
    quarantine,
    services,
    shards,
    silo,
    tuning,
    worth,
)
from simulation.cli.help import set_help_texts
from simulation.command import version_line

app = typer.Typer(no_args_is_help=True)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and exit")
    ] = False,
) -> None:
    """Federated recommendations between silos that keep their data."""


for command in (
    experiments.demo,
    experiments.partition,
    experiments.simulate,
    experiments.report,
    worth.worth,
    tuning.tune,
    joining.invite,
    joining.join,
    services.aggregator,
    services.client,
    services.run,
    services.status,
    services.cancel,
    silo.refresh,
    silo.models,
    services.secret,
    services.certificates,
    services.doctor,
    catalogue.catalogue,
    deployment.compose,
    deployment.kubernetes,
    probe,
    privacy_report,
):
    app.command()(command)
app.command("break")(breaks.break_)
app.add_typer(keys.app, name="keys")
app.add_typer(ledger.app, name="ledger")
app.add_typer(members.app, name="members")
app.add_typer(quarantine.app, name="quarantine")
app.add_typer(shards.app, name="shard")
set_help_texts(app)


def main() -> None:
    """Entry point."""
    run_command_line(app)
