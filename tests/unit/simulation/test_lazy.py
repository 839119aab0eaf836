"""A command's module is imported when it is called; what lists the commands says what each says of itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_service.data.ratings import RATING_SCALES
from client_service.joining_value.forecast import DRAWS
from shared.strategies import STRATEGIES
from simulation.cli import app, options
from simulation.cli.commands import COMMANDS, CommandEntry
from simulation.cli.lazy import load_command
from simulation.operating.lists_file import SINKS
from tests.support.questions import LONGEST_SECONDS

ROOT = Path(__file__).parents[3]
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
    heavy += ["pydantic"] if not words and "pydantic" in sys.modules else []
    print(*words, done.exit_code, heavy, f"{{time.process_time() - before:.2f}} s", sep="\\t")
"""

PARTITION = """
import pathlib, sys
root, entered = sys.argv.pop(1) + "/", set()
def note(frame, event, _):
    if event == "call" and frame.f_code.co_name != "<module>" and frame.f_code.co_filename.startswith(root):
        entered.add(frame.f_code.co_filename)
sys.setprofile(note)
from simulation.command import main
try:
    main()
except SystemExit as end:
    sys.setprofile(None)
    others = ("tests/", ".venv/")
    functions = [name for name in sorted(entered) if not name.removeprefix(root).startswith(others)]
    print(end.code, len(functions), *(name for name in sys.modules if name.startswith(FOREIGN)))
"""
FOREIGN = (
    *("aggregator_service", "audit.probes", "client_service.serving", "client_service.settings", "ray", "torch"),
    *("client_service.training", "shared.protocol", "shared.strategies", "simulation.engines", "simulation.sessions"),
)
RUNNING = """
import sys
from importlib import import_module
for name in sys.argv[1].split(","):
    import_module(name)
print(*(name for name in sys.argv[2].split(",") if name in sys.modules))
"""
TRAINING = ("torch", "scipy", "polars", "client_service.training", "client_service.models", "simulation.partitioning")
LOADED = {  # what a command works with, once it is called -> what none of it may load
    "join": (
        ("simulation.joining.join", "simulation.joining.background", "simulation.joining.consent"),
        (*TRAINING, "aggregator_service", "fastapi", "sqlalchemy", "simulation.experiments", "simulation.datasets"),
    ),
    "client": (("client_service.__main__", "client_service.settings"), (*TRAINING, "fastapi", "simulation")),
    "aggregator": (
        ("aggregator_service.__main__", "aggregator_service.settings", "simulation.joining.invite"),
        (*TRAINING, "client_service", "simulation.experiments"),
    ),
    "run": (("simulation.operating.operator",), (*TRAINING, "fastapi", "sqlalchemy", "simulation.experiments")),
    "doctor": (("simulation.operating.doctor",), (*TRAINING, "aggregator_service", "simulation.experiments")),
}
MOST_ENTERED = 50  # product files of which a function or a class body runs, imports included: 44 at first


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


@pytest.mark.parametrize("name", LOADED)
def test_a_command_loads_nothing_that_trains_or_that_another_service_needs(name: str) -> None:
    modules, heavy = LOADED[name]
    words = [sys.executable, "-c", RUNNING, ",".join(modules), ",".join(heavy)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_cutting_a_file_passes_few_modules_and_none_that_trains_or_serves(tmp_path: Path) -> None:
    rows = [f"u{user},i{(7 * user + 5 * step) % 60}" for user in range(40) for step in range(12)]
    (tmp_path / "data.csv").write_text("\n".join(["user,item", *rows]) + "\n")
    words = ["partition", str(tmp_path / "data.csv"), "--out", str(tmp_path / "shards"), "--clients", "2"]
    code = PARTITION.replace("FOREIGN", repr(FOREIGN))
    done = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), *words], capture_output=True, text=True, timeout=LONGEST_SECONDS
    )
    assert done.returncode == 0, done.stderr
    end, entered, *foreign = done.stdout.splitlines()[-1].split()
    assert end == "0" and foreign == [] and 20 < int(entered) <= MOST_ENTERED
    assert len([*(tmp_path / "shards").glob("*/interactions.parquet")]) == 2


def test_what_the_options_name_is_what_their_registries_have() -> None:
    assert list(options.StrategyName) == list(STRATEGIES)
    assert list(options.RatingKindName) == list(RATING_SCALES)
    assert list(options.LIST_FILES) == list(SINKS) and options.DEFAULT_DRAWS == DRAWS


def test_an_unknown_command_is_named() -> None:
    found = CliRunner().invoke(app, ["parti"])
    assert found.exit_code == 2 and "No such command 'parti'" in found.output


def test_a_module_in_the_table_is_one_of_the_command_line_or_named_in_full() -> None:
    assert CommandEntry("runs", "run", "").module_name == "simulation.cli.runs"
    assert COMMANDS["probe"].module_name == "audit.cli"
