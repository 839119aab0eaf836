"""A command's module is imported when it is called; what lists the commands says what each says of itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from simulation.cli import app
from simulation.cli.commands import COMMANDS, CommandEntry
from simulation.cli.lazy import load_command
from tests.support.questions import LONGEST_SECONDS

HEAVY = ("torch", "polars", "scipy", "httpx", "optuna", "matplotlib", "fastapi")


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_a_command_s_own_help_says(name: str) -> None:
    command = load_command(name)
    assert command.name == name and (command.help or "").split("\n\n")[0] == COMMANDS[name].help


def test_the_list_has_every_command_and_imports_none_of_their_libraries() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert [name for name in COMMANDS if f" {name} " not in shown] == []
    code = "import sys; from typer.testing import CliRunner; from simulation.cli import app; "
    code += f"CliRunner().invoke(app, ['--help']); print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LONGEST_SECONDS, check=True
    )
    assert done.stdout == "[]\n"


def test_an_unknown_command_is_named() -> None:
    found = CliRunner().invoke(app, ["parti"])
    assert found.exit_code == 2 and "No such command 'parti'" in found.output


def test_a_module_in_the_table_is_one_of_the_command_line_or_named_in_full() -> None:
    assert CommandEntry("runs", "run", "").module_name == "simulation.cli.runs"
    assert COMMANDS["probe"].module_name == "audit.cli"
