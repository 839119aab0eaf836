"""What a command shows while it works: a bar on a terminal, else lines at intervals, and none where none is wanted."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shared.protocol.schemas import RunHistoryOut, RunIn
from simulation import progress
from simulation.cli import app
from simulation.cli.commands import COMMANDS
from simulation.cli.lazy import load_command
from simulation.reports import terminal as console
from tests.support.given import Silos


class Time:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


USUAL = {name: getattr(progress, name) for name in ("FIRST_SECONDS", "HEARTBEAT_SECONDS")}


@pytest.fixture(autouse=True)
def usual_seconds(no_progress: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are for users; other tests see no progress."""
    del no_progress
    for name, seconds in USUAL.items():
        monkeypatch.setattr(progress, name, seconds)


@pytest.fixture
def told_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is worth a line at its end however short it is, and the clock tells none."""
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(progress, "TICK_SECONDS", 3600.0)


def test_the_first_line_comes_after_two_seconds_and_the_others_every_ten() -> None:
    clock, told = Time(), list[str]()
    lines = progress.ProgressLines(lambda: "trainings: 1 of 9", told.append, clock)
    spoken = []
    for now in range(31):
        clock.now = float(now)
        before = len(told)
        lines.print_if_due()
        spoken += [now] * (len(told) - before)
    assert spoken == [2, 12, 22] and told[0] == "trainings: 1 of 9, 2 s"
    lines.end()
    assert told[-1] == "trainings: 1 of 9, 30 s"


def test_work_that_is_over_at_once_is_told_by_no_line() -> None:
    clock, told = Time(), list[str]()
    lines = progress.ProgressLines(lambda: "reading", told.append, clock)
    clock.now = 1.9
    lines.print_if_due()
    lines.end()
    assert told == []


def test_a_command_that_tells_nothing_else_is_said_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, told = Time(), list[str]()
    monkeypatch.setattr(progress, "visibility", progress.Visibility(in_command=True, last_line_at=0.0))
    beat = progress.Heartbeat("doctor", told.append, clock)
    for now in range(25):
        clock.now = float(now)
        beat.print_if_due()
    assert told == [f"doctor: still running after {seconds} s" for seconds in (4, 14, 24)]
    progress.visibility.bars = 1
    clock.now = 60.0
    beat.print_if_due()
    assert len(told) == 3, "a bar says it"
    progress.visibility.bars, progress.visibility.last_line_at = 0, 60.0
    for now in (61, 69, 70):
        clock.now = float(now)
        beat.print_if_due()
    assert told[3:] == ["doctor: still running after 70 s"]


def waiting(**fields: Any) -> RunHistoryOut:
    begun = {"run": "run-1", "phase": "waiting", "request": RunIn(rounds=3), "started_at": "then", "rounds": ()}
    return RunHistoryOut.model_validate(begun | fields)


def test_a_run_that_waits_names_the_missing_at_once_then_changes_and_at_latest_after_two_minutes() -> None:
    clock = Time()
    schedule, spoken = console.StatusSchedule(clock), []
    for now in range(400):
        clock.now = float(now)
        joined = ("a",) * (now >= 5) + ("b",) * (now >= 8)
        missing = tuple(name for name in ("a", "b", "c") if name not in joined)
        if schedule.is_due(waiting(enrolled=joined, missing=missing), spoken=False):
            spoken.append((now, missing))
    assert spoken == [(0, ("a", "b", "c")), (30, ("c",)), (150, ("c",)), (270, ("c",)), (390, ("c",))]


@pytest.mark.usefixtures("told_early")
def test_a_forecast_counts_its_trainings_on_stderr_and_none_where_it_is_to_be_quiet(silos: Silos) -> None:
    [folder] = silos(1, users=60, items=30)
    words = ["worth", str(folder), "--draws", "2"]
    shown = CliRunner().invoke(app, words, catch_exceptions=False)
    assert re.search(r"reading the shard, \d+ s", shown.stderr) and "trainings: 6 of 6 (60 users)" in shown.stderr
    assert "trainings" not in shown.stdout
    for quiet in (["--quiet", *words], [*words, "--quiet"], [*words, "--json"], ["--quiet", *words, "--json"]):
        done = CliRunner().invoke(app, quiet, catch_exceptions=False)
        assert (done.exit_code, done.stderr) == (0, "") and done.stdout, quiet
    assert "trainings" in CliRunner().invoke(app, words).stderr, "of one command alone"


@pytest.mark.usefixtures("told_early")
def test_a_partition_says_which_step_it_is_at(tmp_path: Path) -> None:
    path = tmp_path / "sales.csv"
    path.write_text("user,item\n" + "".join(f"u{user},i{(user + n) % 11}\n" for user in range(12) for n in range(9)))
    words = ["partition", str(path), "--clients", "2", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    steps = [line.partition(",")[0] for line in done.stderr.splitlines()]
    assert steps == ["reading the data", "dividing the data", "writing the shards"]
    assert CliRunner().invoke(app, ["--quiet", *words], catch_exceptions=False).stderr == ""


@pytest.mark.usefixtures("told_early")
def test_a_program_that_calls_the_same_functions_sees_no_step(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.step("reading the data"):
        pass
    assert capsys.readouterr().err == ""


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What a person sees of stderr in a terminal."""
    seen = io.StringIO()
    monkeypatch.setattr(progress.ERR, "_file", seen)
    monkeypatch.setattr(progress.ERR, "_force_terminal", True)
    monkeypatch.setattr(progress.ERR, "is_interactive", True)
    monkeypatch.setattr(progress.ERR, "_width", 100)
    yield seen


def test_on_a_terminal_there_is_a_bar_and_work_within_it_has_none(terminal: io.StringIO) -> None:
    with progress.count_bar("floors", 2, shown=True) as done, progress.count_bar("users", 9, shown=True):
        done("client-1")
    shown = terminal.getvalue()
    assert "floors" in shown and "1/2" in shown and "client-1" in shown and "users" not in shown
    assert " s\n" not in shown, "no plain lines beside it"


def test_on_a_terminal_the_bar_of_a_waiting_run_names_who_is_missing(terminal: io.StringIO) -> None:
    with progress.command_progress(), console.round_lines(shown=True) as observe:
        observe(waiting(missing=("north", "south"), enrolled=("west",)))
    assert "waiting; missing: north, south" in terminal.getvalue()


def _parts(command: Any) -> Iterator[Any]:
    yield command
    for part in getattr(command, "commands", {}).values():
        yield from _parts(part)


def test_every_command_that_has_json_has_quiet() -> None:
    for name in COMMANDS:
        for command in _parts(load_command(name)):
            flags = {flag for one in command.params for flag in one.opts}
            assert ("--json" in flags) == ("--quiet" in flags), (name, command.name)


def test_quiet_hides_no_error(tmp_path: Path) -> None:
    failed = CliRunner().invoke(
        app, ["--quiet", "partition", str(tmp_path / "none.csv"), "--out", str(tmp_path / "out")]
    )
    assert failed.exit_code != 0 and "none.csv" in str(failed.exception)
