"""Cost model of rounds: fitted on measured loads, judged on loads beyond them, extrapolated.

python -m benchmarks.speed.cost_model [--clients 50 200 800] [--megabytes 0.01 0.1 1] [--rounds 2]
    [--held-out 3000:0.1] [--points FILE] [--judged FILE] [--devices 100000 1000000] [--json]

A round of n clients with updates of b bytes costs a + k n + c n b: something for itself, for each client, and for each
byte of an update. The three are fitted by least squares of the relative errors, none below 0, for the aggregator's
processor seconds, the bytes of its network, the rows and the bytes that it stores. FILE: lines that load_model --json
has printed; points of --points are fitted beside or, with --clients 0, in place of new ones; those of --judged are held
out, as is the load of --held-out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from benchmarks.common import render_table
from benchmarks.speed.load_model import MEGABYTE, LoadPlan, measure_load

FIGURES = {
    "processor seconds": "aggregator's processor, s",
    "network bytes": "network, MB",
    "rows": "rows",
    "stored bytes": "disk, MB",
}
SCALES = {"network bytes": MEGABYTE, "stored bytes": MEGABYTE}
TERMS = ("a round", "a client", "a byte of an update")
NEEDED = len(TERMS)


@dataclass(frozen=True)
class LoadPoint:
    """Costs of one round, by figure, with its clients and bytes of an update."""

    clients: int
    update_bytes: int
    costs: Mapping[str, float]

    @property
    def terms(self) -> tuple[float, float, float]:
        """Multiples of the model's coefficients."""
        return 1.0, float(self.clients), float(self.clients) * self.update_bytes


@dataclass(frozen=True)
class CostModel:
    """Coefficients of each figure, in the order of TERMS.

    least, most: numbers of clients that were fitted.
    """

    coefficients: Mapping[str, tuple[float, ...]]
    least: int
    most: int

    def predict(self, figure: str, clients: int, update_bytes: float) -> float:
        """Returns the cost of a round."""
        terms = (1.0, float(clients), clients * update_bytes)
        return float(np.dot(self.coefficients[figure], terms))

    def errors(self, point: LoadPoint) -> dict[str, float]:
        """Returns predicted by measured, less 1, of each figure."""
        return {
            figure: self.predict(figure, point.clients, point.update_bytes) / measured - 1.0
            for figure, measured in point.costs.items()
            if measured > 0
        }


def fit_model(points: Sequence[LoadPoint]) -> CostModel:
    """Fits the coefficients of each figure; raises ValueError for fewer points than coefficients."""
    if len({(one.clients, one.update_bytes) for one in points}) < NEEDED:
        raise ValueError(f"expected {NEEDED} or more different points to fit, got {len(points)}")
    terms = [one.terms for one in points]
    found = {figure: fit_terms(terms, [one.costs[figure] for one in points]) for figure in FIGURES}
    clients = [one.clients for one in points]
    return CostModel(found, min(clients), max(clients))


def fit_terms(terms: Sequence[Sequence[float]], costs: Sequence[float]) -> tuple[float, ...]:
    """Fits a coefficient of each term by least squares of relative errors.

    None is below 0. A cost of 0 or less tells nothing: of a file that shrinks meanwhile.
    """
    seen = [place for place, cost in enumerate(costs) if cost > 0]
    rows = np.array([terms[place] for place in seen]) / np.array([costs[place] for place in seen])[:, None]
    sizes = rows.max(axis=0)  # the columns differ by ten orders of magnitude
    return tuple((nnls(rows / sizes, np.ones(len(seen)))[0] / sizes).tolist())


def read_point(line: str) -> LoadPoint:
    """Reads a line that load_model --json has printed."""
    told = json.loads(line)
    rounds = told["rounds"]
    spent = sum(one["processor"] for one in told["phases"][1:])
    costs = {
        "processor seconds": spent / rounds,
        "network bytes": (told["sent"] + told["received"]) / rounds,
        "rows": told["rows"] / rounds,
        "stored bytes": told["disk"] / rounds,
    }
    return LoadPoint(told["clients"], told["update_bytes"], costs)


def read_points(files: Iterable[Path]) -> list[LoadPoint]:
    """Reads the points of files; other lines than JSON are left out."""
    lines = (line for file in files for line in file.read_text("utf-8").splitlines())
    return [read_point(line) for line in lines if line.startswith("{")]


def measure_point(clients: int, megabytes: float, rounds: int) -> LoadPoint:
    """Measures rounds of this many clients."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure_load(LoadPlan(clients, rounds, megabytes), Path(folder)))
    return read_point(json.dumps(asdict(found)))


def describe(model: CostModel, fitted: Sequence[LoadPoint], judged: Sequence[LoadPoint]) -> list[str]:
    """Renders the coefficients, and the errors of each point."""
    heads = ("figure", *TERMS, "largest error, fitted")
    rows = [
        [
            FIGURES[figure].partition(",")[0],
            *(f"{one:.3g}" for one in model.coefficients[figure]),
            f"{_largest_error(model, figure, fitted):+.0%}",
        ]
        for figure in FIGURES
    ]
    beyond = [
        [f"{point.clients:,}", f"{point.update_bytes / MEGABYTE:.3g}"]
        + [
            f"{_format_cost(figure, point.costs[figure])} ({model.errors(point).get(figure, 0.0):+.0%})"
            for figure in FIGURES
        ]
        for point in judged
    ]
    found = [render_table(heads, rows)]
    if beyond:
        heads = ("held out: clients", "MB", *(f"{name} (error)" for name in FIGURES.values()))
        found += [render_table(heads, beyond)]
    return found


def _largest_error(model: CostModel, figure: str, points: Sequence[LoadPoint]) -> float:
    return max((model.errors(point).get(figure, 0.0) for point in points), key=abs)


def extrapolate(model: CostModel, clients: Sequence[int], update_bytes: float) -> str:
    """Renders the costs of larger rounds at one aggregator, by the model alone."""
    rows = [
        [f"{count:,}", *(_format_cost(figure, model.predict(figure, count, update_bytes)) for figure in FIGURES)]
        for count in clients
    ]
    return render_table((f"clients, {update_bytes / MEGABYTE:g} MB each", *FIGURES.values()), rows)


def _format_cost(figure: str, value: float) -> str:
    return f"{value / SCALES.get(figure, 1):,.0f}"


def _read_load(text: str) -> tuple[int, float]:
    clients, _, megabytes = text.partition(":")
    return int(clients), float(megabytes or 0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 200, 800], help="of measured rounds; 0: none")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.01, 0.1, 1.0], help="of their updates")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--held-out", type=_read_load, action="append", default=[], metavar="CLIENTS:MEGABYTES")
    parser.add_argument("--points", type=Path, action="append", default=[], metavar="FILE", help="to be fitted")
    parser.add_argument("--judged", type=Path, action="append", default=[], metavar="FILE", help="to be held out")
    parser.add_argument("--devices", type=int, nargs="+", default=[100_000, 1_000_000], help="to extrapolate to")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    fitted, judged = read_points(given.points), read_points(given.judged)
    sizes = [(count, size) for count in given.clients if count for size in given.megabytes]
    fitted += [measure_point(*size, given.rounds) for size in sizes]
    judged += [measure_point(*size, given.rounds) for size in given.held_out]
    model = fit_model(fitted)
    if given.json:
        errors = [asdict(point) | {"errors": model.errors(point)} for point in judged]
        print(json.dumps({"model": asdict(model), "fitted": [asdict(one) for one in fitted], "held_out": errors}))
        return
    print("\n\n".join([*describe(model, fitted, judged), extrapolate(model, given.devices, 0.1 * MEGABYTE)]))


if __name__ == "__main__":
    main()
