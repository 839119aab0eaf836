"""Numbers -> a line chart as SVG: gridlines, axes in words, labels at the ends of the lines, a title at each point.

Pure, and without any style of its own: colours, dashes and sizes of text are the style sheet's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from shared.web.scales import LINE_HEIGHT, Point, Scale, apart, spread, thinned, ticks

WIDTH, HEIGHT = 460, 260
TOP, BOTTOM, LEFT = 30, 48, 58
CHARACTER = 8.0  # width of one in a label, in the chart's units
LONGEST_LABEL = 12
MOST_MARKS = 60  # a line of more points shows none of them
TONES = 6  # of lines, in the style sheet


@dataclass(frozen=True)
class Line:
    """A named line; a point whose value is None or not finite is left out."""

    name: str
    points: tuple[tuple[float, float | None], ...]

    @property
    def known(self) -> list[Point]:
        return [(x, y) for x, y in self.points if y is not None and math.isfinite(y)]


@dataclass(frozen=True)
class Chart:
    """A chart and what it says. `key`: unique on the page. `mark`: one x to point out, and the words beside it.

    `digits`: places after the point in the table of its numbers; with none, the values are whole.
    """

    key: str
    title: str
    description: str
    x: str
    y: str
    lines: tuple[Line, ...]
    bounds: tuple[float | None, float | None] = (None, None)
    mark: tuple[float, str] | None = None
    digits: int = 4

    @property
    def rows(self) -> list[tuple[float, list[float | None]]]:
        """The same numbers as a table: each x with the value of every line."""
        values = [dict(line.points) for line in self.lines]
        every = sorted({x for line in self.lines for x, _ in line.points})
        return [(x, [found.get(x) for found in values]) for x in thinned(every)]


@dataclass(frozen=True)
class Drawing:
    """The lines that have points, in their tones, and where their values lie."""

    lines: tuple[tuple[int, str, Sequence[Point]], ...]
    x: Scale
    y: Scale


def drawn(chart: Chart) -> Markup:
    """The chart as one SVG element; where no line has a point, a sentence."""
    lines = tuple((tone % TONES, line.name, thinned(line.known)) for tone, line in enumerate(chart.lines) if line.known)
    if not lines:
        return tag("p", "No figures yet.", class_="empty")
    drawing = _placed(lines, chart.bounds)
    title, text = f"{chart.key}-title", f"{chart.key}-text"
    inside = [tag("title", chart.title, id=title), tag("desc", chart.description, id=text)]
    marks = [value for value in ticks(drawing.y.low, drawing.y.high) if chart.digits or value == int(value)]
    inside += [_grid(drawing, marks), _axes(drawing, chart, marks), *_mark(drawing, chart.mark)]
    inside += [_line(drawing, tone, name, points) for tone, name, points in lines]
    said = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "role": "img", "aria-labelledby": f"{title} {text}"}
    return tag("svg", *inside, *_labels(drawing), class_="chart", **said)


def tag(name: str, *inside: str, **attributes: object) -> Markup:
    """One element; text and attributes are escaped. `class_` and `text_anchor` are class and text-anchor."""
    said = (Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    return Markup("<{0}{1}>{2}</{0}>").format(name, Markup("").join(said), Markup("").join(inside))


def _placed(lines: tuple[tuple[int, str, Sequence[Point]], ...], bounds: tuple[float | None, float | None]) -> Drawing:
    xs = [x for _, _, points in lines for x, _ in points]
    ys = [y for _, _, points in lines for _, y in points]
    longest = max(len(_shortened(name)) for _, name, _ in lines) if len(lines) > 1 else 0
    across = Scale(*spread(min(xs), max(xs), (min(xs), max(xs))), LEFT, WIDTH - 14 - CHARACTER * longest)
    return Drawing(lines, across, Scale(*spread(min(ys), max(ys), bounds), HEIGHT - BOTTOM, TOP))


def _grid(drawing: Drawing, marks: Sequence[float]) -> Markup:
    x, y = drawing.x, drawing.y
    lines = [tag("line", x1=LEFT, x2=x.end, y1=y(value), y2=y(value)) for value in marks]
    return tag("g", *lines, class_="grid")


def _axes(drawing: Drawing, chart: Chart, marks: Sequence[float]) -> Markup:
    x, y, floor = drawing.x, drawing.y, HEIGHT - BOTTOM
    beside = [_text(_said(value), LEFT - 8, y(value) + 4, "end") for value in marks]
    whole = [value for value in ticks(x.low, x.high) if value == int(value)]  # rounds and places are whole numbers
    beneath = [_text(_said(value), x(value), floor + 18, "middle") for value in whole]
    names = [_text(chart.x, (LEFT + x.end) / 2, HEIGHT - 8, "middle", "axis"), _text(chart.y, 4, 14, "start", "axis")]
    return tag("g", *beside, *beneath, *names, class_="axes")


def _text(content: str, x: float, y: float, anchor: str, kind: str = "tick") -> Markup:
    return tag("text", content, x=x, y=y, text_anchor=anchor, class_=kind)


def _said(value: float) -> str:
    return f"{value:.10g}"


def _mark(drawing: Drawing, mark: tuple[float, str] | None) -> list[Markup]:
    if mark is None or not drawing.x.low <= mark[0] <= drawing.x.high:
        return []
    x, line = drawing.x(mark[0]), {"y1": TOP - 8, "y2": HEIGHT - BOTTOM}
    beside, anchor = (-6, "end") if x > (LEFT + drawing.x.end) / 2 else (6, "start")
    words = _text(mark[1], x + beside, TOP - 1, anchor)
    return [tag("g", tag("line", x1=x, x2=x, **line), words, class_="mark")]


def _line(drawing: Drawing, tone: int, name: str, points: Sequence[Point]) -> Markup:
    x, y = drawing.x, drawing.y
    path = "M" + "L".join(f"{x(one)} {y(other)}" for one, other in points)
    inside = [tag("title", name), tag("path", d=path)]
    for one, other in points if len(points) <= MOST_MARKS else ():
        title = tag("title", f"{name}, {_said(one)}: {other:.5g}")
        inside.append(tag("g", title, _dot(x(one), y(other), 9, "reach"), _dot(x(one), y(other), 2.6, "dot")))
    return tag("g", *inside, class_=f"line tone-{tone}")


def _dot(x: float, y: float, radius: float, kind: str) -> Markup:
    return tag("circle", cx=x, cy=y, r=radius, class_=kind)


def _labels(drawing: Drawing) -> list[Markup]:
    """Names at the ends of the lines; where they do not all fit, of the highest and the lowest; of one line none."""
    if len(drawing.lines) == 1:
        return []
    ends = sorted((drawing.y(points[-1][1]), tone, name) for tone, name, points in drawing.lines)
    if len(ends) * LINE_HEIGHT > HEIGHT - BOTTOM - TOP + LINE_HEIGHT:
        ends = [ends[0], ends[-1]]
    places = apart([y for y, _, _ in ends], TOP, HEIGHT - BOTTOM)
    words = [
        tag("text", _shortened(name), x=drawing.x.end + 8, y=place + 4, class_=f"label tone-{tone}")
        for (_, tone, name), place in zip(ends, places, strict=True)
    ]
    return words


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_LABEL else f"{name[: LONGEST_LABEL - 1]}…"
