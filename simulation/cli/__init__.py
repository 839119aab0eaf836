"""The command line `lpsfed`. Results go to stdout (JSON with --json), bars and errors to stderr."""

from __future__ import annotations

import sys

import typer
from rich.markup import escape

from audit.cli import privacy_report, probe
from shared.errors import FederationError, SettingsError
from simulation.cli import experiments, keys, quarantine, services, tuning
from simulation.console import ERR

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Federated recommendations between silos that keep their data."
)
for command in (
    experiments.demo,
    experiments.partition,
    experiments.simulate,
    experiments.report,
    tuning.tune,
    services.aggregator,
    services.client,
    services.run,
    services.status,
    services.secret,
    services.certificates,
    services.doctor,
    probe,
    privacy_report,
):
    app.command()(command)
app.add_typer(keys.app, name="keys")
app.add_typer(quarantine.app, name="quarantine")


def main() -> None:
    """Entry point: an error of the tree is one line on stderr and exit code 1 or, for settings, 2."""
    try:
        app()
    except FederationError as error:
        ERR.print("[red]error:[/]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, SettingsError) else 1)
