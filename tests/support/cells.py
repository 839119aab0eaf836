"""The table at the end of a test run: how long each cell of a kill matrix took."""

from __future__ import annotations

import pytest


def print_cells(reporter: pytest.TerminalReporter, name: str, title: str) -> None:
    """Of the tests that passed and reported (what happened, to whom, seconds) as the property of this name."""
    passed = [report for report in reporter.getreports("passed") if report.when == "call"]
    cells = [value for report in passed for told, value in report.user_properties if told == name]
    if cells:
        reporter.section(title)
        width = max(len(moment) for moment, _, _ in cells) + 2
        for moment, victim, seconds in sorted(cells):
            reporter.line(f"{moment:<{width}}{victim:<14}{seconds:6.2f}")
