"""What the command line prints in a terminal of 80 columns: nothing is cut, and no number is broken."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType
from typer.testing import CliRunner

from shared.strategies import STRATEGIES
from simulation.cli import app, keys, machine
from simulation.cli.commands import COMMANDS
from simulation.cli.lazy import load_command, unwrap_paragraphs
from simulation.operating.doctor import Check
from simulation.partitioning.methods import METHODS
from simulation.reports import tables, terminal
from simulation.reports.terminal import answer_table

CUT = "…"
LONG_NAME = "a-silo-with-a-name-that-is-longer-than-those-of-examples"


def paths() -> Iterator[tuple[str, ...]]:
    """Every command, and every group of them."""
    for name in COMMANDS:
        yield (name,)
        yield from ((name, inner) for inner in getattr(load_command(name), "commands", ()))


def show_help(*path: str) -> str:
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"})
    assert shown.exit_code == 0 and max(map(len, shown.stdout.splitlines())) <= 80
    return shown.stdout


def render(shown: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(shown)
    return out.getvalue()


def unfold(text: str) -> str:
    """Without what separates the pieces of a folded word."""
    return "".join(text.split())


@pytest.mark.parametrize("path", [(), *paths()], ids=" ".join)
def test_a_page_of_help_is_whole(path: tuple[str, ...]) -> None:
    assert CUT not in show_help(*path)


@pytest.mark.parametrize("command", ["simulate", "tune", "aggregator", "client"])
def test_every_strategy_is_named_in_one_piece(command: str) -> None:
    words = {word.strip("│,<>|") for word in show_help(command).split()}
    assert set(STRATEGIES) <= words


@pytest.mark.parametrize("command", ["partition", "simulate", "tune"])
def test_every_method_is_named_in_one_piece(command: str) -> None:
    words = {word.strip("│,;<>|") for word in show_help(command).split()}
    assert set(METHODS) <= words


def test_a_help_text_is_broken_by_the_terminal_alone() -> None:
    assert unwrap_paragraphs("One\n    two.\n\n    Three\n    four.\n    ") == "One two.\n\nThree four."
    lines = [line.strip() for line in show_help("worth").splitlines()]
    first = next(number for number, line in enumerate(lines) if line.startswith("The forecast cuts"))
    assert all(len(line) > 65 for line in lines[first : first + 2])


def entries(calls: dict[str, tuple[int, int]]) -> list[dict[str, Any]]:
    """A ledger with so many calls, of so many bytes each."""
    made = [(call, size) for call, (times, size) in calls.items() for _ in range(times)]
    return [
        {"kind": "intent", "sequence": number, "call": call, "bytes": size} for number, (call, size) in enumerate(made)
    ]


@pytest.mark.parametrize("name", ["client-1", LONG_NAME])
def test_the_calls_of_a_secure_run_and_their_bytes_are_whole(name: str) -> None:
    calls = {"join": (1, 802), "model": (2, 0), "current": (17, 0), "anchor": (10, 0), "roster": (3, 14_977_123)}
    calls |= {"update": (11, 127_814_177), "personalized": (11, 0)}
    shown = render(tables.crossing_table({name: entries(calls)}))
    assert CUT not in shown and "personalized" in shown and "current" in shown
    assert {"802", "44,931,369", "1,405,955,947"} <= set(shown.split())


def test_figures_stay_whole_beside_a_long_name() -> None:
    summary = {"data": "ratings", "method": "users", "partition": 0, "edges_kept": 1.0}
    sizes = {"users": 1_234_567, "items": 2_345_678, "train": 123_456_789, "valid": 23_456_789, "test": 34_567_891}
    shown = render(terminal.partition_table({**summary, "clients": [{"client": LONG_NAME, **sizes}]}))
    assert CUT not in shown and {f"{size:,}" for size in sizes.values()} <= set(shown.split())
    item = {
        "item": LONG_NAME,
        "title": "A title that is much longer than a line of a terminal has room for",
        "score": 1.5,
    }
    shown = render(answer_table("For u", {"user": "u", "items": [item]}))
    assert CUT not in shown and "1.500" in shown.split()
    shown = render(answer_table("For u", {"user": "u", "items": [{**item, "reason": "new"}]}))
    assert CUT not in shown and {"1.500", "new"} <= set(shown.split())


def test_keys_are_listed_with_whole_fingerprints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("client-1", LONG_NAME):
        assert CliRunner().invoke(app, ["keys", "new", name, "--out", str(tmp_path)]).exit_code == 0
    monkeypatch.setattr(keys, "OUT", Console(width=80))
    marks = json.loads(CliRunner().invoke(app, ["keys", "list", "--keys", str(tmp_path), "--json"]).stdout)
    shown = CliRunner().invoke(app, ["keys", "list", "--keys", str(tmp_path)]).stdout
    assert len(marks) == 2 and {mark["fingerprint"] for mark in marks} <= set(shown.split())


def test_the_doctor_shows_a_path_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = f"/somewhere/{LONG_NAME}/{LONG_NAME}/interactions.parquet: expected a readable file"
    monkeypatch.setattr("simulation.operating.doctor.check_machine", lambda **_: [Check("shard", False, found)])
    monkeypatch.setattr(machine, "OUT", Console(width=80))
    shown = CliRunner().invoke(app, ["doctor"]).stdout
    assert CUT not in shown and unfold(found) in unfold(shown)
