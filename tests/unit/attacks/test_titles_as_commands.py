"""A title, an id or another's answer that a spreadsheet would compute, or a terminal obey."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import polars as pl
import pytest

from audit.terminal import SHOWN, as_one_line, run_command_line, show_controls
from lpsfed import Recommendations, RecommendedItem
from shared.errors import DataError
from simulation import progress
from simulation.cli.recommending import _print_lists
from simulation.operating.lists_file import save_lists
from simulation.reports.terminal import OUT, count_bar

ROOT = Path(__file__).parents[3]
FORMULAS = ["=1+1", "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"]
OBEYED = [
    "[/x]",
    "[link=https://a.example]here[/link]",
    "[bold red]red",
    ":heart:",
    "a\x1b[2Jb",
    "a\x9b31mb",
    "a\rb",
    "a\u202eb",
    "a\u2028b",
    "a\ud800b",
    "a\x07\x08\x7fb",
]


def lists_of(*titles: str, user: str = "u1") -> list[Recommendations]:
    items = tuple(RecommendedItem(f"i{number}", 1.0, title) for number, title in enumerate(titles))
    return [Recommendations(items, user, "run-1.1")]


def test_no_cell_of_a_csv_file_is_a_formula_and_other_formats_have_titles_as_they_are(tmp_path: Path) -> None:
    titles = [*FORMULAS, "Alien", "a=b", "'quoted'"]
    for suffix in (".csv", ".parquet", ".ndjson"):
        assert save_lists(lists_of(*titles, user="=HYPERLINK(1)"), tmp_path / f"lists{suffix}") == 1
    with (tmp_path / "lists.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["title"] for row in rows] == [*(f"'{one}" for one in FORMULAS), "Alien", "a=b", "'quoted'"]
    assert {row["user"] for row in rows} == {"'=HYPERLINK(1)"} and rows[0]["item"] == "i0"
    assert pl.read_parquet(tmp_path / "lists.parquet")["title"].to_list() == titles
    assert pl.read_ndjson(tmp_path / "lists.ndjson")["title"].to_list() == titles


@pytest.mark.parametrize("user", ["-5", "+49170", "@alice", "-1.5", "@b-2.c"])
def test_an_id_that_computes_nothing_is_the_same_in_every_format(tmp_path: Path, user: str) -> None:
    save_lists(lists_of("Alien", user=user), tmp_path / "lists.csv")
    with (tmp_path / "lists.csv").open(encoding="utf-8", newline="") as file:
        assert [row["user"] for row in csv.DictReader(file)] == [user]


@pytest.mark.parametrize("title", OBEYED)
def test_a_title_is_shown_as_it_is(title: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = lists_of(title, "a\nb: because of c", user=title)
    _print_lists(told, as_json=False)
    OUT.print(title)
    shown = capsys.readouterr().out
    assert shown.count(as_one_line(title)) == 3 and "\\n" in shown and "\nb: because" not in shown
    assert not set(map(ord, shown)) & (SHOWN.keys() - {ord("\n")})
    assert as_one_line("Amélie\u00a0\u3000\u200d ‘x’") == "Amélie\u00a0\u3000\u200d ‘x’"  # what writing needs stays


@pytest.mark.parametrize("reason", OBEYED)
def test_an_error_and_a_bar_show_what_another_has_said_as_it_is(
    reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)

    def fail() -> None:
        raise DataError(f"expected a title, got {reason}")

    with pytest.raises(SystemExit) as ended:
        run_command_line(fail)
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: expected a title, got {show_controls(reason)}\n"
    with count_bar("users", 1, shown=True) as advance:
        advance(reason)
    assert as_one_line(reason)[:9] in capsys.readouterr().err  # the bar is cut where the terminal ends


def test_every_line_of_a_command_goes_through_the_one_console() -> None:
    own = re.compile(r"from rich(\.console import .*\bConsole\b|\.markup )|import rich\b|\bTextColumn\b")
    files = [path for room in ("simulation", "audit") for path in (ROOT / room).rglob("*.py")]
    found = [str(path.relative_to(ROOT)) for path in files if own.search(path.read_text(encoding="utf-8"))]
    assert found == ["audit/terminal.py"] and "simulation.reports.terminal" in sys.modules
