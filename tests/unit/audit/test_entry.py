"""However a command ends, it ends with one clear line or, where nobody reads any more, with none."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from audit.console import OUT
from audit.terminal import CLOSED_PIPE, run_command_line
from shared.errors import DataError, FederationError, SettingsError


@contextmanager
def unread() -> Iterator[int]:
    """The writing end of a pipe whose other end has gone."""
    read, write = os.pipe()
    os.close(read)
    try:
        yield write
    finally:
        os.close(write)


def ending(run: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> object:
    """How a command ends whose lines nobody reads."""
    with unread() as write, os.fdopen(write, "w", closefd=False) as stdout, pytest.raises(SystemExit) as ended:
        monkeypatch.setattr(sys, "stdout", stdout)
        run()
    return ended.value.code


def a_line() -> None:
    sys.stdout.write("kept back until the end\n")


def many_lines() -> None:
    for _ in range(10_000):
        sys.stdout.write("a line of a list\n")


def a_table() -> None:
    OUT.print("a line of a table")


def by_typer(command: Callable[[], None]) -> Callable[[], None]:
    app = typer.Typer()
    app.command()(command)
    return lambda: app(())


COMMANDS = [a_line, many_lines, a_table]


@pytest.mark.parametrize("command", [*COMMANDS, *map(by_typer, COMMANDS)])
def test_where_nobody_reads_it_ends_without_a_word(
    command: Callable[[], None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(OUT, "quiet", False)  # which rich changes, and is put back
    assert ending(lambda: run_command_line(command), monkeypatch) == CLOSED_PIPE == 141
    assert capfd.readouterr().err == ""


def test_a_long_list_of_the_benchmarks_may_be_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "table1", "--list"])
    assert ending(lambda: runpy.run_module("benchmarks", run_name="__main__"), monkeypatch) == CLOSED_PIPE


@pytest.mark.parametrize(("error", "status"), [(SettingsError, 2), (DataError, 1)])
def test_an_error_of_the_tree_is_one_line(
    error: type[FederationError], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> None:
        raise error("width: expected [1..1024], got 0")

    with pytest.raises(SystemExit) as ended:
        run_command_line(command)
    assert ended.value.code == status
    assert capsys.readouterr().err == "error: width: expected [1..1024], got 0\n"


def test_a_file_that_the_system_refuses_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command_line(lambda: tmp_path.read_text())
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path}: ") and said.endswith("Is a directory\n")


def test_what_is_a_mistake_of_ours_keeps_its_traceback_and_an_ending_its_status() -> None:
    def failing() -> None:
        raise OSError(5, "of no file")

    with pytest.raises(OSError, match="of no file"):
        run_command_line(failing)
    with pytest.raises(SystemExit) as ended:
        run_command_line(lambda: sys.exit(7))
    assert ended.value.code == 7
