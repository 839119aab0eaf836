"""A record among a command's parameters is its fields as flags, in their place; the command gets the record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from audit.terminal import spread_records


@dataclass(frozen=True)
class Place:
    """Where something is."""

    host: Annotated[str, typer.Option(help="its name")]
    port: Annotated[int, typer.Option(min=1, help="its port")] = 80


@spread_records
def call(name: str, place: Place, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
    """Call somebody."""
    typer.echo(f"{name} {place} {loud}")


def test_a_record_s_fields_are_flags_in_its_place() -> None:
    app = typer.Typer(add_completion=False)
    app.command()(call)
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout
    assert "Call somebody." in shown and shown.index("--host") < shown.index("--port") < shown.index("--loud")
    assert CliRunner().invoke(app, ["Ann", "--host", "here"]).stdout == "Ann Place(host='here', port=80) False\n"
    refused = CliRunner().invoke(app, ["Ann", "--port", "0"])
    assert refused.exit_code == 2 and "--port" in refused.output


def test_a_function_calls_it_by_the_names_of_the_flags(capsys: pytest.CaptureFixture[str]) -> None:
    call(name="Ann", host="there", loud=True)
    assert capsys.readouterr().out == "Ann Place(host='there', port=80) True\n"
