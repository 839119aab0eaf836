"""A chart's numbers are the same in its table and in what the browser draws."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shared.web.charts import MOST_ROWS, Chart, Line
from shared.web.pages import load_templates

ROUNDS = Chart(
    key="rho",
    title="rho by client",
    description="How far",
    x="round",
    y="rho",
    lines=(Line("north", ((1, 0.1), (2, 0.3), (3, 0.2))), Line("south", ((1, 0.4), (2, None), (4, 0.5)))),
    bounds=(0.0, None),
    mark=(2, "best: round 2"),
)


def figure(chart: Chart, folder: Path) -> str:
    """The chart's HTML."""
    (folder / "one.html").write_text("{% from 'macros.html' import figure %}{{ figure(chart) }}")
    return load_templates(folder).get_template("one.html").render(chart=chart)


def test_the_table_has_every_x_with_the_value_of_every_line() -> None:
    assert ROUNDS.rows == [(1, [0.1, 0.4]), (2, [0.3, None]), (3, [0.2, None]), (4, [None, 0.5])]


def test_what_is_drawn_is_the_table_by_columns_with_its_words() -> None:
    assert json.loads(ROUNDS.json) == {
        "x": "round",
        "y": "rho",
        "lines": ["north", "south"],
        "dashed": [False, False],
        "columns": [[1, 2, 3, 4], [0.1, 0.3, 0.2, None], [0.4, None, None, 0.5]],
        "bounds": [0.0, None],
        "mark": [2, "best: round 2"],
        "digits": 4,
    }


def test_text_is_escaped_everywhere(tmp_path: Path) -> None:
    evil = "<script>alert('\"&')</script>"
    chart = replace(ROUNDS, key='a"b', title=evil, description=evil, x=evil, y=evil, mark=(1, evil))
    html = figure(replace(chart, lines=(Line(evil, ((1, 1.0),)),)), tmp_path)
    assert "<script" not in html and 'a"b' not in html and html.count("&lt;script&gt;") == 9


@pytest.mark.parametrize("points", [(), ((1, None),), ((1, float("nan")), (2, float("inf")))])
def test_a_chart_without_figures_is_a_sentence(points: tuple[tuple[float, float | None], ...], tmp_path: Path) -> None:
    chart = replace(ROUNDS, lines=(Line("north", points),))
    assert chart.json == replace(ROUNDS, lines=()).json == ""
    assert "No figures yet." in figure(chart, tmp_path) and "data-chart" not in figure(chart, tmp_path)


def test_a_long_line_keeps_its_ends() -> None:
    long = Line("long", tuple((x, float(x)) for x in range(10_000)))
    xs = [x for x, _ in replace(ROUNDS, lines=(long,)).rows]
    assert len(xs) == MOST_ROWS and (xs[0], xs[-1]) == (0, 9999) and xs == sorted(set(xs))
