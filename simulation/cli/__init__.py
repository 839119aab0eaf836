"""The command line `lpsfed`. Results go to stdout (JSON with --json), bars and errors to stderr."""

from __future__ import annotations

import typer

from audit.cli import privacy_report, probe
from audit.entry import run_command_line
from simulation.cli import (
    breaks,
    catalogue,
    deployment,
    experiments,
    keys,
    ledger,
    members,
    quarantine,
    services,
    shards,
    tuning,
    worth,
)

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Federated recommendations between silos that keep their data."
)
for command in (
    experiments.demo,
    experiments.partition,
    experiments.simulate,
    experiments.report,
    worth.worth,
    tuning.tune,
    services.aggregator,
    services.client,
    services.run,
    services.status,
    services.cancel,
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


def main() -> None:
    """Entry point."""
    run_command_line(app)
