"""A command's module is imported when it is called; what lists the commands says what each says of itself."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from client_service.data.ratings import MEANINGS
from client_service.joining_value.forecast import DRAWS
from shared.strategies import STRATEGIES
from simulation.cli import app, options
from simulation.cli.commands import COMMANDS, CommandEntry
from simulation.cli.lazy import load_command
from simulation.operating.lists_file import SINKS
from tests.support.questions import LONGEST_SECONDS

HEAVY = (
    *("torch", "numpy", "scipy", "polars", "optuna", "matplotlib", "fastapi", "sqlalchemy", "alembic", "jinja2", "ray"),
    *("aggregator_service", "client_service.settings", "client_service.data", "audit.evidence.case", "audit.probes"),
)
EVERY_HELP = f"""
import sys, time
from typer.testing import CliRunner
from simulation.cli import app
from simulation.cli.commands import COMMANDS
for words in ([], *([name] for name in COMMANDS)):
    before = time.process_time()
    done = CliRunner().invoke(app, [*words, "--help"])
    heavy = [name for name in {HEAVY} if name in sys.modules]
    print(*words, done.exit_code, heavy, f"{{time.process_time() - before:.2f}} s", sep="\\t")
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_a_command_s_own_help_says(name: str) -> None:
    command = load_command(name)
    assert command.name == name and (command.help or "").split("\n\n")[0] == COMMANDS[name].help


def test_the_list_of_commands_has_every_one_of_them() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert [name for name in COMMANDS if f" {name} " not in shown] == []


def test_no_help_text_imports_what_a_command_works_with() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERY_HELP], capture_output=True, text=True, timeout=LONGEST_SECONDS, check=True
    )
    sys.stdout.write(done.stdout)  # with the seconds of each, which `pytest -s` shows
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(lines) == 1 + len(COMMANDS)
    assert [line for line in lines if line[-3:-1] != ["0", "[]"]] == []


def test_what_the_options_name_is_what_their_registries_have() -> None:
    assert list(options.StrategyName) == list(STRATEGIES)
    assert list(options.RatingKindName) == list(MEANINGS)
    assert list(options.LIST_FILES) == list(SINKS) and options.USUAL_DRAWS == DRAWS


def test_an_unknown_command_is_named() -> None:
    found = CliRunner().invoke(app, ["parti"])
    assert found.exit_code == 2 and "No such command 'parti'" in found.output


def test_a_module_in_the_table_is_one_of_the_command_line_or_named_in_full() -> None:
    assert CommandEntry("runs", "run", "").module_name == "simulation.cli.runs"
    assert COMMANDS["probe"].module_name == "audit.cli"
