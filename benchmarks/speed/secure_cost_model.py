"""Cost model of secure rounds: fitted on small ones, judged on a larger one, extrapolated.

python -m benchmarks.speed.secure_cost_model [--clients 16 32 64 96] [--held-out 128] [--rounds 3]
    [--larger 1024 10000] [--points FILE] [--json]

The terms follow from the protocol. Each silo makes and masks one update, and the aggregator answers it: a cost for each
silo. Each agrees on keys, seals shares and makes masks with the neighbours that it draws: for each of these. Each reads
the signed keys of all: for each silo that it knows. So a round of n silos that draw k each costs a n + b n k + c n n.
Below 64 silos everybody is everybody's neighbour. The three are fitted by least squares of the relative errors, none
below 0, for the processor seconds of all silos and the aggregator together, the bytes that the silos send and receive,
and the rows that stay. Measured as by `secure_round`, in one process, without training; the first round of a run costs
more, because its keys are agreed: the median round counts. FILE: what --json has printed, of which the points are taken
in place of new ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sqlite3
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.common import render_table
from benchmarks.speed.cost_model import fit_terms
from benchmarks.speed.load_model import MEGABYTE
from benchmarks.speed.secure_round import measure_clients
from shared.protocol.secure import graph

FIGURES = {"processor seconds": "processor, s", "bytes up": "sent, MB", "bytes down": "received, MB", "rows": "rows"}
SCALES = {"bytes up": MEGABYTE, "bytes down": MEGABYTE}
MOST_LOST = 500  # drop-outs; a graph that bears more has more neighbours than the protocol allows
TERMS = ("a silo", "a neighbour that a silo draws", "a silo that a silo knows")
ROWS = (
    "SELECT (SELECT count(*) FROM updates) + (SELECT count(*) FROM states) + (SELECT count(*) FROM sums)"
    " + (SELECT count(*) FROM secure_messages) + (SELECT count(*) FROM arrivals WHERE call <> 'join')"
)


@dataclass(frozen=True)
class SecurePoint:
    """Costs of one secure round, by figure, with its silos and the neighbours of each."""

    clients: int
    degree: int
    costs: Mapping[str, float]

    @property
    def terms(self) -> tuple[float, float, float]:
        """Multiples of the model's coefficients."""
        return secure_terms(self.clients, self.degree)


@dataclass(frozen=True)
class SecureCostModel:
    """Coefficients of each figure, in the order of TERMS."""

    coefficients: Mapping[str, tuple[float, ...]]

    def predict(self, figure: str, clients: int, degree: int) -> float:
        """Returns the cost of a round."""
        terms = secure_terms(clients, degree)
        return sum(one * other for one, other in zip(self.coefficients[figure], terms, strict=True))

    def errors(self, point: SecurePoint) -> dict[str, float]:
        """Returns predicted by measured, less 1, of each figure."""
        return {
            figure: self.predict(figure, point.clients, point.degree) / measured - 1.0
            for figure, measured in point.costs.items()
        }


def secure_terms(clients: int, degree: int) -> tuple[float, float, float]:
    """Returns the silos, their pairs with neighbours, and their pairs with all."""
    return float(clients), float(clients) * degree, float(clients) * clients


def planned_degree(clients: int, *, dropouts: float = graph.DROPOUTS) -> int:
    """Returns the neighbours that each silo draws, if a third may collude.

    Below 64 silos they are all others.
    """
    bounds = graph.announce_bounds(clients, dropouts=dropouts)
    plan = None if bounds is None else graph.plan_graph(clients, bounds)
    return clients - 1 if plan is None else plan.degree


def fit_secure_model(points: Sequence[SecurePoint]) -> SecureCostModel:
    """Fits the coefficients of each figure; raises ValueError for fewer points than coefficients."""
    terms = [one.terms for one in points]
    return SecureCostModel({name: fit_terms(terms, [one.costs[name] for one in points]) for name in FIGURES})


def measure_secure_point(clients: int, rounds: int) -> SecurePoint:
    """Measures secure rounds of these silos."""
    with tempfile.TemporaryDirectory() as folder:
        _, cpu, up, down = asyncio.run(_play(Path(folder), clients, rounds))
        with closing(sqlite3.connect(Path(folder, "aggregator", "aggregator.sqlite"))) as database:
            rows = int(database.execute(ROWS).fetchone()[0])
    spent = (cpu / 1000, float(up * clients), float(down * clients), rows / rounds)
    return SecurePoint(clients, planned_degree(clients), dict(zip(FIGURES, spent, strict=True)))


async def _play(folder: Path, clients: int, rounds: int) -> tuple[float, float, int, int]:
    async with AsyncExitStack() as stack:
        return await measure_clients(stack, folder, clients, rounds, secure=True)


def read_secure_points(text: str) -> list[SecurePoint]:
    """Reads the points that --json has printed; other lines are left out."""
    told = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [SecurePoint(**point) for one in told for point in one.get("points", ())]


def describe(model: SecureCostModel, fitted: Sequence[SecurePoint], judged: SecurePoint, larger: Sequence[int]) -> str:
    """Renders the coefficients, the error of each point, and the costs of larger rounds."""
    coefficients = [
        [FIGURES[name].partition(",")[0], *(f"{one:.3g}" for one in model.coefficients[name])] for name in FIGURES
    ]
    points = [
        [f"{one.clients}{', held out' if one is judged else ''}", str(one.degree)]
        + [f"{_format_cost(name, one.costs[name])} ({model.errors(one)[name]:+.0%})" for name in FIGURES]
        for one in (*fitted, judged)
    ]
    beyond = [
        _describe_larger(model, count, lost) for count in larger for lost in (count // 20, 10) if lost < MOST_LOST
    ]
    heads = ("silos", "neighbours", *FIGURES.values())
    tables = (
        render_table(("figure", *TERMS), coefficients),
        render_table((*heads[:2], *(f"{name} (error)" for name in heads[2:])), points),
        render_table((*heads, "processor, s a silo"), beyond),
    )
    return "\n\n".join(tables)


def _describe_larger(model: SecureCostModel, clients: int, lost: int) -> list[str]:
    degree = planned_degree(clients, dropouts=lost / clients)
    costs = [model.predict(name, clients, degree) for name in FIGURES]
    shown = [_format_cost(name, cost) for name, cost in zip(FIGURES, costs, strict=True)]
    return [f"{clients:,}, {lost} may drop out", str(degree), *shown, f"{costs[0] / clients:.2f}"]


def _format_cost(figure: str, value: float) -> str:
    return f"{value / SCALES.get(figure, 1):,.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[16, 32, 64, 96], help="of the fitted rounds")
    parser.add_argument("--held-out", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--larger", type=int, nargs="*", default=[1024, 10_000], help="to extrapolate to")
    parser.add_argument("--points", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    logging.disable(logging.INFO)
    if given.points is None:
        points = [measure_secure_point(count, given.rounds) for count in (*given.clients, given.held_out)]
    else:
        points = read_secure_points(given.points.read_text("utf-8"))
    *fitted, judged = points
    model = fit_secure_model(fitted)
    if given.json:
        told = {"points": [asdict(one) for one in points], "model": asdict(model), "errors": model.errors(judged)}
        print(json.dumps(told))
        return
    print(describe(model, fitted, judged, given.larger))


if __name__ == "__main__":
    main()
