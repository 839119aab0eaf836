"""Renders FedUTR's tables from the lines of its runs and tests its paper's claims.

Where a client is a user, intervals are over users; where it is a silo, over seeds.

The command is `python -m benchmarks.fedutr.tables`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.fedutr.devices import RESULTS as DEVICE_RESULTS
from benchmarks.fedutr.run import RESULTS, Row
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy

FIGURES = ("hr10_all", "ndcg10_all", "hr10_99", "ndcg10_99")
CLAIMS = {
    "FedUTR is ahead of FedMF": ("fedutr", "fedmf"),
    "FedUTR is ahead of FedRAP": ("fedutr", "fedrap"),
    "FedUTR is ahead of PFedRec": ("fedutr", "pfedrec"),
    "FedUTR is ahead of FedMF with text": ("fedutr", "fedmf+text"),
    "FedUTR is ahead of FedRAP with text": ("fedutr", "fedrap+text"),
    "FedUTR is ahead of popularity": ("fedutr", "popularity"),
    "FedUTR is ahead of EASE": ("fedutr", "ease"),
    "FedUTR-SAR is ahead of FedUTR": ("fedutr_sar", "fedutr"),
    "the text (URM) helps": ("fedutr", "fedutr-urm"),
    "the fusion (CIFM) helps": ("fedutr", "fedutr-cifm"),
    "the adaptation (LAM) helps": ("fedutr", "fedutr-lam"),
    "the L1 norm helps": ("fedutr", "fedutr-l1"),
    "LayerNorm helps": ("fedutr", "fedutr-layernorm"),
    "text lifts FedMF": ("fedmf+text", "fedmf"),
    "text lifts FedRAP": ("fedrap+text", "fedrap"),
    "text lifts PFedRec": ("pfedrec+text", "pfedrec"),
    "FedUTR is ahead of PFedRec with text": ("fedutr", "pfedrec+text"),
    "FedUTR is ahead of the fusion": ("fedutr", "fusion"),
    "FedMF with text is ahead of EASE": ("fedmf+text", "ease"),
    "negatives that avoid held-out items raise PFedRec": ("pfedrec+known", "pfedrec"),
    "negatives that avoid held-out items raise FedRAP": ("fedrap+known", "fedrap"),
    "noise of .5 costs little": ("fedutr+noise.5", "fedutr"),
    "differential privacy of users costs little": ("fedutr+dp", "fedutr"),
}
"""By claim of the paper, the row that is said to be ahead, and the other one; of noise, that it is not behind."""
ITEMS = {"KU": 5370, "Food": 1579, "Dance": 2307, "Movie": 3509, "ml-1m-text": 3260}
"""Number of items of the paper's data sets, and of ours."""
Cells = Mapping[str, Mapping[int, Mapping[str, float]]]


def read_cells(path: Path = RESULTS) -> dict[tuple[Any, ...], dict[str, dict[int, dict[str, float]]]]:
    """Reads the test figures by data set and sizes, row and seed.

    The last line of each counts.
    """
    found: dict[tuple[Any, ...], dict[str, dict[int, dict[str, float]]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row: Row = json.loads(line)
        sizes = tuple(row[name] for name in ("data", "users", "records", "silos"))
        found.setdefault(sizes, {}).setdefault(row["row"], {})[row["seed"]] = row["test"]
    return found


def judge_claim(cells: Cells, ahead: str, behind: str, figure: str = "hr10_all") -> str:
    """Tests a claim by the mean difference over seeds.

    The text has the verdict, the difference and its 95 % interval (Student's t).
    """
    seeds = sorted(cells.get(ahead, {}).keys() & cells.get(behind, {}).keys())
    if len(seeds) < 2:
        return "not measured"
    gains = np.array([cells[ahead][seed][figure] - cells[behind][seed][figure] for seed in seeds])
    half = float(stats.t.ppf(0.975, len(seeds) - 1) * gains.std(ddof=1) / np.sqrt(len(seeds)))
    mean = float(gains.mean())
    verdict = "holds" if mean - half > 0 else "does not hold" if mean + half < 0 else "no difference seen"
    return f"{verdict}: {mean:+.4f} +- {half:.4f} over {len(seeds)} seeds"


@dataclass(frozen=True)
class DeviceRow:
    """A row's test figures and hits by seed, and what validation chose for it.

    hits: side ("all", "99") -> (M,) of each seed, 1 for a user whose item is among ten.
    """

    test: dict[int, dict[str, float]] = field(default_factory=dict)
    hits: dict[str, dict[int, NDArray[np.float64]]] = field(default_factory=lambda: {"all": {}, "99": {}})
    chosen: dict[str, Any] = field(default_factory=dict)

    def mean_hits(self, side: str, seeds: Iterable[int]) -> NDArray[np.float64]:
        """Computes each user's mean over seeds, (M,)."""
        return np.asarray(np.mean([self.hits[side][seed] for seed in seeds], axis=0), dtype=np.float64)


DeviceCells = Mapping[str, DeviceRow]


def read_device_cells(path: Path = DEVICE_RESULTS) -> dict[tuple[str, int], dict[str, DeviceRow]]:
    """Reads the rows where a client is a user, by data set and records."""
    found: dict[tuple[str, int], dict[str, DeviceRow]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row: Row = json.loads(line)
        cell = found.setdefault((row["data"], row["records"]), {}).setdefault(row["row"], DeviceRow())
        if row["seed"] < 0:
            cell.chosen.update(row["set"])
            continue
        cell.test[row["seed"]] = row["test"]
        for side, bits in row["hits"].items():
            unpacked = np.unpackbits(np.frombuffer(base64.b64decode(bits), np.uint8))[: row["judged"]]
            cell.hits[side][row["seed"]] = unpacked.astype(np.float64)
    return found


def judge_users(cells: DeviceCells, ahead: str, behind: str, side: str = "all") -> str:
    """Tests a claim by the paired differences of users' HR@10, each the mean over seeds.

    The text has the verdict, the mean difference, its 95 % interval over users (normal), and each seed's difference.
    """
    if ahead not in cells or behind not in cells:
        return "not measured"
    seeds = sorted(cells[ahead].test.keys() & cells[behind].test.keys())
    if not seeds:
        return "not measured"
    gains = cells[ahead].mean_hits(side, seeds) - cells[behind].mean_hits(side, seeds)
    mean, half = float(gains.mean()), 1.96 * float(gains.std(ddof=1)) / float(np.sqrt(len(gains)))
    verdict = "holds" if mean - half > 0 else "does not hold" if mean + half < 0 else "no difference seen"
    one = [cells[ahead].hits[side][seed].mean() - cells[behind].hits[side][seed].mean() for seed in seeds]
    return f"{verdict}: {mean:+.4f} +- {half:.4f} over users; seeds {' '.join(f'{value:+.4f}' for value in one)}"


def render_device_tables(found: Mapping[tuple[str, int], DeviceCells]) -> Sequence[str]:
    """Renders tables with one client per user, intervals and tested claims."""
    lines = []
    for (data, records), cells in found.items():
        lines += [f"\n{data}: all users, {records or 'all'} records, one client a user", ""]
        lines += [
            "| row | seeds | HR@10 all | NDCG@10 all | HR@10 of 99 | NDCG@10 of 99 | chosen |",
            "| --- " * 7 + "|",
        ]
        for name, row in cells.items():
            means = [float(np.mean([one[figure] for one in row.test.values()] or [np.nan])) for figure in FIGURES]
            users = row.mean_hits("all", row.test) if row.test else np.zeros(2)
            half = 1.96 * float(users.std(ddof=1)) / float(np.sqrt(len(users)))
            first = f"{means[0]:.4f} +- {half:.4f}"
            rest = " | ".join(f"{value:.4f}" for value in means[1:])
            chosen = ", ".join(f"{value:g}" for value in row.chosen.values())
            lines.append(f"| {name} | {len(row.test)} | {first} | {rest} | {chosen} |")
        lines += ["", *(f"- {claim}: {judge_users(cells, *pair)}" for claim, pair in CLAIMS.items())]
    return lines


def render_sizes(width: int = 32) -> Sequence[str]:
    """Renders the bytes of a client's round in each direction, by strategy."""
    lines = ["\nBytes of a round, each way, width " + str(width), "", "| strategy | " + " | ".join(ITEMS) + " |"]
    lines.append("| --- " * (1 + len(ITEMS)) + "|")
    for name in ("fedmf", "pfedrec", "fedrap", "fedutr", "fedutr_sar"):
        methods = [MethodSettings(width=width, catalogue=items) for items in ITEMS.values()]
        sizes = [sum(value.nbytes for value in build_strategy(name, one).start(one, 0).values()) for one in methods]
        lines.append(f"| {name} | " + " | ".join(f"{size:,}" for size in sizes) + " |")
    return lines


def render_cells(cells: Cells) -> Iterable[str]:
    """Renders a line for each row with its means over seeds."""
    yield "| row | seeds | " + " | ".join(FIGURES) + " |"
    yield "| --- " * (2 + len(FIGURES)) + "|"
    for name, seeds in cells.items():
        means = [float(np.mean([one[figure] for one in seeds.values()])) for figure in FIGURES]
        yield f"| {name} | {len(seeds)} | " + " | ".join(f"{value:.4f}" for value in means) + " |"


def render_tables(found: Mapping[tuple[Any, ...], Cells]) -> Sequence[str]:
    """Renders the tables and the tested claims of all data sets."""
    lines = []
    for sizes, cells in found.items():
        lines += [f"\n{sizes[0]}: {sizes[1] or 'all'} users, {sizes[2] or 'all'} records, {sizes[3] or 'no'} silos", ""]
        lines += [*render_cells(cells), ""]
        lines += [f"- {claim}: {judge_claim(cells, *pair)}" for claim, pair in CLAIMS.items()]
    return lines


if __name__ == "__main__":
    print("\n".join([*render_sizes(), *render_device_tables(read_device_cells()), *render_tables(read_cells())]))
