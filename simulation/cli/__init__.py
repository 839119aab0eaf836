"""Command line `lpsfed`: results on stdout (JSON with --json), progress and errors on stderr."""

from __future__ import annotations

import json
import logging
from typing import Annotated, Any

import typer

from audit.terminal import run_command_line
from simulation import version_line
from simulation.cli.lazy import LazyCommands
from simulation.progress import hide_progress

OMITTED_FIELDS = ("event", "level", "timestamp", "request_id", "reason")
MOST_LINES = 1000  # lines that are remembered

app = typer.Typer(cls=LazyCommands, no_args_is_help=True)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(version_line())
        raise typer.Exit


@app.callback()
def set_general_options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Hide progress on stderr; results, notes and errors stay")
    ] = False,
) -> None:
    """Trains recommenders over silos that keep their data."""
    del version
    if quiet:
        hide_progress()


def main() -> None:
    """Runs the command line."""
    configure_plain_log()
    run_command_line(app)


class PlainLogHandler(logging.StreamHandler[Any]):
    """Log handler that writes each event in words, and only once."""

    def __init__(self, stream: Any = None) -> None:
        super().__init__(stream)
        self.setFormatter(logging.Formatter())  # else the log would add its own words
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if (line := self.format(record)) not in self._told:
            if len(self._told) < MOST_LINES:
                self._told.add(line)
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        message = super().format(record)
        event = _read_event(message)
        return message if event is None else _describe(event)


def configure_plain_log() -> None:
    """Makes services log lines for a person, without repetitions, while a command runs them.

    A process that is a service sets up its own log, which replaces this one.
    """
    logging.basicConfig(handlers=[PlainLogHandler()])


def _read_event(line: str) -> dict[str, Any] | None:
    """Parses a log line's fields; None for a line that is no event."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


def _describe(event: dict[str, Any]) -> str:
    """Formats an event as `event: reason (field value, field value)`."""
    words = str(event["event"]).replace("_", " ")
    words += f": {event['reason']}" if "reason" in event else ""
    others = ", ".join(f"{name} {value}" for name, value in event.items() if name not in OMITTED_FIELDS)
    return f"{words} ({others})" if others else words
