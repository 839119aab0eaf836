"""Charts are well-formed, escaped, labelled, and say the same as their table."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from shared.web.charts import HEIGHT, WIDTH, Chart, Line, drawn
from shared.web.scales import LINE_HEIGHT, MOST_POINTS, apart, thinned, ticks

ROUNDS = Chart(
    key="rho",
    title="rho by client",
    description="How far",
    x="round",
    y="rho",
    lines=(Line("north", ((1, 0.1), (2, 0.3), (3, 0.2))), Line("south", ((1, 0.4), (2, None), (3, 0.5)))),
    bounds=(0.0, None),
    mark=(2, "best: round 2"),
)


def parsed(chart: Chart) -> ElementTree.Element:
    return ElementTree.fromstring(str(drawn(chart)))


def texts(root: ElementTree.Element, kind: str) -> list[str]:
    return [found.text or "" for found in root.iter("text") if kind in found.get("class", "").split()]


def places(root: ElementTree.Element) -> list[list[tuple[float, float]]]:
    """Of every line's path."""
    paths = [found.get("d", "") for found in root.iter("path")]
    return [[(float(x), float(y)) for x, y in (one.split() for one in path[1:].split("L"))] for path in paths]


def test_a_chart_has_a_title_a_description_names_of_its_axes_and_of_its_lines() -> None:
    root = parsed(ROUNDS)
    assert root.get("role") == "img" and root.get("aria-labelledby") == "rho-title rho-text"
    assert [(found.get("id"), found.text) for found in root if found.tag in ("title", "desc")] == [
        ("rho-title", "rho by client"),
        ("rho-text", "How far"),
    ]
    assert texts(root, "axis") == ["round", "rho"] and sorted(texts(root, "label")) == ["north", "south"]
    assert {"1", "2", "3", "0", "0.4"} <= set(texts(root, "tick")) and "1.5" not in texts(root, "tick")


def test_points_lie_where_their_values_are_and_say_so() -> None:
    root = parsed(ROUNDS)
    north, south = places(root)
    assert len(north) == 3 and len(south) == 2  # a value that is missing leaves no point
    assert north[0][0] == south[0][0] and north[0][0] < north[1][0] < north[2][0]
    assert north[1][1] < north[2][1] < north[0][1]  # higher values are further up
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in north + south)
    titles = [found.text for found in root.iter("title")]
    assert "north, 2: 0.3" in titles and "south, 3: 0.5" in titles and "south, 2: None" not in titles


def test_one_line_needs_no_label_and_a_mark_is_pointed_out_in_words() -> None:
    root = parsed(replace(ROUNDS, lines=ROUNDS.lines[:1]))
    assert texts(root, "label") == [] and "best: round 2" in [found.text for found in root.iter("text")]
    beyond = parsed(replace(ROUNDS, mark=(9, "best: round 9")))
    assert "best: round 9" not in [found.text for found in beyond.iter("text")]


def test_whole_values_have_whole_ticks() -> None:
    chart = replace(ROUNDS, lines=(Line("came", ((1, 2.0), (2, 1.0))),), digits=0)
    assert {"0", "1", "2"} <= set(texts(parsed(chart), "tick")) and "0.5" not in texts(parsed(chart), "tick")


def test_text_is_escaped_everywhere() -> None:
    evil = "<script>alert('\"&')</script>"
    chart = replace(ROUNDS, key='a"b', title=evil, description=evil, x=evil, y=evil, mark=(1, evil))
    chart = replace(chart, lines=(Line(evil, ((1, 1.0),)), Line("b", ((1, 2.0),))))
    assert "<script" not in str(drawn(chart)) and parsed(chart).get("role") == "img"


@pytest.mark.parametrize("points", [(), ((1, None),), ((1, float("nan")), (2, float("inf")))])
def test_a_chart_without_figures_is_a_sentence(points: tuple[tuple[float, float | None], ...]) -> None:
    assert str(drawn(replace(ROUNDS, lines=(Line("north", points),)))) == '<p class="empty">No figures yet.</p>'


@pytest.mark.parametrize("value", [0.0, 1e-12, 0.25, -3.0, 1e9])
@pytest.mark.parametrize("bounds", [(None, None), (0.0, None), (0.0, 1.0)])
def test_one_point_and_a_flat_line_can_be_drawn(value: float, bounds: tuple[float | None, float | None]) -> None:
    for points in (((1, value),), ((1, value), (2, value), (3, value))):
        [path] = places(parsed(replace(ROUNDS, lines=(Line("north", points),), bounds=bounds)))
        assert len(path) == len(points) and len({y for _, y in path}) == 1


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (0.31, 0.34, [0.31, 0.32, 0.33, 0.34]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (0, 0.0084, [0, 0.002, 0.004, 0.006, 0.008]),
    ],
)
def test_ticks_are_round_numbers_within_the_range(low: float, high: float, expected: list[float]) -> None:
    assert ticks(low, high) == pytest.approx(expected)


def test_a_long_line_is_thinned_and_keeps_its_ends() -> None:
    assert thinned([1, 2, 3]) == [1, 2, 3]
    chosen = thinned(range(10_000))
    assert len(chosen) == MOST_POINTS and (chosen[0], chosen[-1]) == (0, 9999) and chosen == sorted(set(chosen))
    long = Line("long", tuple((x, float(x)) for x in range(10_000)))
    chart = replace(ROUNDS, lines=(long,))
    assert len(places(parsed(chart))[0]) == len(chart.rows) == MOST_POINTS
    assert not list(parsed(chart).iter("circle"))


def test_labels_do_not_lie_on_each_other() -> None:
    assert apart([10, 100], 0, 200) == [10, 100]
    for wanted in ([50, 50, 50], [0, 1, 2, 3], [198, 199, 200], [5, 6, 190, 200]):
        found = apart(wanted, 0, 200)
        assert all(after - before >= LINE_HEIGHT for before, after in pairwise(found))
        assert min(found) >= 0 and max(found) <= 200


def test_too_many_lines_are_labelled_at_the_top_and_at_the_bottom_alone() -> None:
    lines = tuple(Line(f"client-{number}", ((1, 0.0), (2, float(number)))) for number in range(40))
    assert texts(parsed(replace(ROUNDS, lines=lines)), "label") == ["client-39", "client-0"]


def test_a_long_name_is_cut_in_its_label_and_whole_in_its_title() -> None:
    name = "a-client-with-a-long-name"
    root = parsed(replace(ROUNDS, lines=(*ROUNDS.lines, Line(name, ((1, 1.0),)))))
    assert "a-client-wi…" in texts(root, "label") and name in [found.text for found in root.iter("title")]


def test_the_table_has_every_x_with_the_value_of_every_line() -> None:
    assert ROUNDS.rows == [(1, [0.1, 0.4]), (2, [0.3, None]), (3, [0.2, 0.5])]
