"""The command line `lpsfed`. Results go to stdout (JSON with --json), bars and errors to stderr."""

from __future__ import annotations

from typing import Annotated

import typer

from audit.terminal import run_command_line
from simulation.cli.lazy import LazyCommands
from simulation.cli.service_logs import tell_plainly
from simulation.command import version_line
from simulation.progress import hide_progress

app = typer.Typer(cls=LazyCommands, no_args_is_help=True)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def take_general_options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and exit")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="no progress on stderr; results, notes and errors stay")
    ] = False,
) -> None:
    """Federated recommendations between silos that keep their data."""
    del version
    if quiet:
        hide_progress()


def main() -> None:
    """Entry point."""
    tell_plainly()
    run_command_line(app)
