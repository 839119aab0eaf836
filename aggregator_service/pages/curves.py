"""Charts of a run over its rounds, and a table of scalars that never change."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator_service.pages.overview import round_seconds
from shared.protocol.schemas import ParticipantOut, RunHistoryOut
from shared.web.charts import Chart, Line

SHOWN_LINES, SHOWN_CONSTANTS = 10, 100
SAME = 5e-5  # two values that look the same on the page


@dataclass(frozen=True)
class SpectralFigure:
    """Scalar of a client that the aggregator sees; `most`: end of its axis."""

    name: str
    caption: str
    most: float | None

    def of(self, part: ParticipantOut) -> float | None:
        return part.rho if self.name == "rho" else part.rhobar


RHO = SpectralFigure("rho", "Distance of each silo’s spectrum from the anchor’s; 0 is equal.", None)
RHOBAR = SpectralFigure("rhobar", "Share of the common mean in a client’s parameters; the rest is its own.", 1.0)


@dataclass(frozen=True)
class ConstantRow:
    """Client with scalars that never change; None for a scalar that changes."""

    client: str
    rho: float | None
    rhobar: float | None


def run_charts(run: RunHistoryOut) -> tuple[Chart, ...]:
    """Draws rho and rhobar where they change, the updates, and the time of each round."""
    spectral = (_spectral_chart(run, figure) for figure in (RHO, RHOBAR))
    return (*(chart for chart in spectral if chart is not None), _arrivals_chart(run), _duration_chart(run))


def constant_scalars(run: RunHistoryOut) -> tuple[ConstantRow, ...]:
    """Lists the clients with a scalar that never changes, by name.

    A line of such a scalar would show nothing.
    """
    rho, rhobar = (dict(_constants(run, figure)) for figure in (RHO, RHOBAR))
    named = sorted(rho.keys() | rhobar.keys())[:SHOWN_CONSTANTS]
    return tuple(ConstantRow(client, rho.get(client), rhobar.get(client)) for client in named)


def _constants(run: RunHistoryOut, figure: SpectralFigure) -> list[tuple[str, float]]:
    return [(line.name, known[0]) for line in _lines(run, figure) if (known := _constant(line))]


def _constant(line: Line) -> list[float]:
    """Returns the known values of a level line; none of any other line."""
    known = [value for _, value in line.points if value is not None]
    return known if known and max(known) - min(known) < SAME else []


def _lines(run: RunHistoryOut, figure: SpectralFigure) -> list[Line]:
    """Returns one line per client, by name, with a point for each of its rounds."""
    points: dict[str, list[tuple[float, float | None]]] = {}
    for one in run.rounds:
        for part in one.participants:
            points.setdefault(part.client, []).append((one.number, figure.of(part)))
    return [Line(client, tuple(points[client])) for client in sorted(points)]


def _spectral_chart(run: RunHistoryOut, figure: SpectralFigure) -> Chart | None:
    """Draws the lines that change; None if none does."""
    lines = [line for line in _lines(run, figure) if not _constant(line) and any(value for _, value in line.points)]
    if not lines:
        return None
    beyond = f" Shown: the first {SHOWN_LINES} of {len(lines):,} clients." if len(lines) > SHOWN_LINES else ""
    return Chart(
        key=figure.name,
        title=f"{figure.name} by client",
        description=f"{figure.caption}{beyond}",
        x="round",
        y=figure.name,
        lines=tuple(lines[:SHOWN_LINES]),
        bounds=(0.0, figure.most),
    )


def _arrivals_chart(run: RunHistoryOut) -> Chart:
    closed = [one for one in run.rounds if one.closed_at is not None]
    expected = tuple((one.number, float(len(one.participants))) for one in closed)
    received = tuple((one.number, float(len(one.participants) - len(one.missing))) for one in closed)
    return Chart(
        key="updates",
        title="Updates by round",
        description="Updates received before the round closed, and enrolled clients.",
        x="round",
        y="updates",
        lines=(Line("received", received), Line("enrolled", expected, dashed=True)),
        bounds=(0.0, None),
        digits=0,
    )


def _duration_chart(run: RunHistoryOut) -> Chart:
    return Chart(
        key="time",
        title="Round time",
        description="Time from a round’s opening to its closing.",
        x="round",
        y="seconds",
        lines=(Line("seconds", tuple((one.number, round_seconds(one)) for one in run.rounds)),),
        bounds=(0.0, None),
        digits=2,
    )
