"""Quality of a silo alone, of secure sums with training, and of all data together.

A cell is the folder of a finished simulation: `measure` runs one, `adopt.py` imports an existing one.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.basis.sub_tables import (
    Figures,
    Line,
    epsilon_of,
    epsilon_table,
    federation_key,
    format_ratio,
    format_verdict,
    gain_tables,
    is_other_method,
    mean_bytes,
    mean_of_users,
    measure_gains,
    method_table,
    ratio,
)
from benchmarks.common import render_table
from benchmarks.harness.measure import FLOOR_LABELS, THREADS, Work, served_figures
from benchmarks.harness.tables import format_number
from client_service.boundary.ledger import parse_entry, read_lines
from client_service.evaluation.metrics import LABELS, PRIMARY
from shared.errors import DataError
from simulation.engines.study import run_study
from simulation.experiments.experiment import Experiment
from simulation.experiments.floors import FLOORS, START
from simulation.experiments.in_process import simulate_experiment
from simulation.partitioning.catalogue import merge_items, save_catalogue

KEY = LABELS[PRIMARY].key
TARGETS = {
    ("ml-1m", "users", 4, "exact"): 1.04,
    ("ml-1m", "users", 16, "exact"): 1.15,
    ("ml-1m", "random", 16, "exact"): 1.20,
    ("ml-1m", "random", 64, "exact"): 1.55,
    ("ml-100k", "users", 16, "exact"): 1.15,
    ("ml-100k", "random", 16, "exact"): 1.40,
    ("ml-1m", "users", 16, "iterated, rank 128, 3 rounds"): 1.06,
    ("gowalla", "random", 64, "iterated, rank 128, 3 rounds"): 1.5,
    ("yelp2018-13k", "random", 64, "iterated, rank 128, 3 rounds"): 1.7,
}
"""The least ratio of together to alone that a row should have; the same for its closed forms alone."""
SIZES = {"10 to 49 users": (10, 50), "50 to 119": (50, 120), "120 and more": (120, math.inf)}
UNTRAINED = ", no training"


@dataclass(frozen=True)
class SharingExperiment(Experiment):
    """Experiment in which silos share some items, and others have a name in each silo."""

    @cached_property
    def catalogue(self) -> Path:
        """List of items without those that only one silo has."""
        items = merge_items(self.shards)
        path = super().catalogue
        assert path is not None, "expected a method with a common basis"
        save_catalogue(items.filter(~items.str.contains(f"@({'|'.join(self.names)})$")), path)
        return path


def measure(work: Work) -> Figures:
    """Measures one cell by a simulation in its own folder."""
    experiment = SharingExperiment(
        work.shards,
        work.state,
        work.method,
        rounds=work.rounds,
        seed=work.seed,
        device=work.device,
        threads=THREADS,
        secure=True,
    )
    run_study(experiment, simulate_experiment, edges_kept=None, shown=False)
    return read_run(work.state, work.shards)


def read_run(folder: Path, shards: Sequence[Path]) -> Figures:
    """Reads the figures of a finished simulation on these shards.

    Raises DataError if its report lacks the floors.
    """
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    if report["alone"] is None or not report["floors"]:
        raise DataError(f"{folder}: expected a run with its floors, got one without (--no-floors)")
    means = {name: report[name] and report[name][KEY] for name in ("alone", "together", "centralised")}
    floors = {FLOOR_LABELS[name]: both and both["user_mean"][KEY] for name, both in report["floors"].items()}
    paths = {path.name: path for path in shards}
    clients = [_client_figures(client, report, folder, paths[client["client"]]) for client in report["clients"]]
    return {"clients": clients, **means, "floors": floors, "seconds": report["seconds"], "digest": report["digest"]}


def _client_figures(client: Figures, report: Figures, folder: Path, shard: Path) -> Figures:
    """Returns a client's METRICS, primary measures of floors, gains, and bytes."""
    name = client["client"]
    floors = report["floors_by_client"][name]
    bounds = {floor: floors[floor] and floors[floor][KEY] for floor in (*FLOORS, START)}
    own = {"bounds": bounds, "gains": measure_gains(folder, shard)}
    return served_figures(client) | own | sent_bytes(folder / name / "ledger.jsonl")


def sent_bytes(ledger: Path) -> dict[str, int]:
    """Counts a client's sent bytes, in all and in the basis run.

    They are read from its ledger.
    """
    sent: dict[str, int] = defaultdict(int)
    for entry in map(parse_entry, read_lines(ledger)):
        if entry.get("kind") == "intent":
            sent[str(entry.get("run"))] += entry["bytes"]
    return {"bytes_up": sum(sent.values()), "basis_bytes_up": sent["run-1"]}


def render(lines: list[Line]) -> str:
    """Renders all tables as Markdown.

    Each measured cell, the gain by size of the silo, by item and by user, rank by rounds, noise, other methods, and
    the overlap.
    """
    joined = [line for line in lines if not is_other_method(line)]
    whole = [line for line in joined if "overlap" not in line and epsilon_of(line) is None]
    parts = [HEAD, render_table(COLUMNS, [_cell_row(line) for line in whole])]
    parts += ["### By size of the silo", BY_SIZE, render_table(["", *SIZES], [_size_row(line) for line in whole])]
    parts += gain_tables(whole)
    if ranks := _rank_lines(whole):
        parts += ["### Rank, rounds and bytes", render_table(RANK_COLUMNS, [_rank_row(line) for line in ranks])]
    parts += [*epsilon_table(joined), *method_table(lines)]
    if shared := [line for line in joined if "overlap" in line]:
        alike = {(federation_key(line), line["label"]) for line in shared}
        beside = [line for line in whole if (federation_key(line), line["label"]) in alike]
        rows = [_overlap_row(line) for line in (*shared, *beside)]
        parts += ["### Items in common", OVERLAP, render_table(OVERLAP_COLUMNS, rows)]
    return "\n\n".join(parts)


HEAD = f"""{LABELS[PRIMARY].title}, user mean, test items. *Alone*: the silo's own fused closed forms. *Together*: what
it serves after the basis run and the training run. *Centralised*: the closed forms on the data of all silos.
*Closeness*: together to centralised. *Target*: the ratio that was asked for. Bytes: bodies that one silo sent in both
runs, mean over the silos, and those of the basis run. Seconds: both runs, all silos on one machine."""
COLUMNS = (
    *("data, cut", "silos", "basis", "popularity", "best floor", "alone", "together", "together / alone", "target"),
    *("to best floor", "centralised", "closeness", "s", "bytes up a silo", "of the basis run"),
)
BY_SIZE = "Together to alone at the user mean, over the silos by number of users; in brackets the number of silos."
RANK_COLUMNS = ("data, cut, silos", "rank", "rounds", "bytes up a silo, basis run", "together", "together / alone", "s")
OVERLAP = """Items that are not in common have another name in each silo, and are not on the list of items, so that no
statistics of them are summed. Popular: those with the most records are in common; random: drawn ones."""
OVERLAP_COLUMNS = ("data, cut, silos", "in common", "basis", "alone", "together", "together / alone", "centralised")


def _cell_row(line: Line) -> list[str]:
    data, cut, silos = federation_key(line)
    found = line["extra"]
    floor, label = best_floor(line)
    return [
        f"{data}, {cut}",
        str(silos),
        line["label"],
        format_number(found["floors"]["popularity"]),
        f"{format_number(floor)} ({label})",
        *(format_number(found[name]) for name in ("alone", "together")),
        f"{ratio(line):.3f}",
        verdict(line),
        f"{found['together'] / floor:.3f}",
        format_number(found["centralised"]),
        format_ratio(found["together"], found["centralised"]),
        f"{found['seconds']['total']:.0f}",
        *(f"{mean_bytes(line, key):,.0f}" for key in ("bytes_up", "basis_bytes_up")),
    ]


def best_floor(line: Line) -> tuple[float, str]:
    """Returns the highest floor and its name."""
    known = [(value, label) for label, value in line["extra"]["floors"].items() if value is not None]
    return max(known)


def target_of(line: Line) -> float | None:
    """Returns the target ratio of a line; None if it has none."""
    if "overlap" in line:
        return None
    return TARGETS.get((*federation_key(line), line["label"].removesuffix(UNTRAINED)))


def verdict(line: Line) -> str:
    """Formats the target and whether it is met."""
    return format_verdict(ratio(line), target_of(line))


def _size_row(line: Line) -> list[str]:
    data, cut, silos = federation_key(line)
    groups = [[one for one in line["clients"] if low <= one["users"] < high] for low, high in SIZES.values()]
    return [f"{data}, {cut}, {silos}, {line['label']}", *map(_gain_text, groups)]


def _gain_text(clients: Sequence[Figures]) -> str:
    together = mean_of_users(clients, lambda client: client[PRIMARY])
    return f"{format_ratio(together, mean_of_users(clients, lambda client: client['bounds'][START]))} ({len(clients)})"


def _rank_lines(lines: Sequence[Line]) -> list[Line]:
    """Returns trained iterated rows of federations with several ranks or rounds, in order."""
    iterated = [line for line in lines if line["settings"]["basis.kind"] == "iterated" and _is_trained(line)]
    numbers = [federation_key(line) for line in iterated]
    several = [line for line in iterated if numbers.count(federation_key(line)) > 1]
    return sorted(several, key=lambda line: (federation_key(line), *_rank_of(line)))


def _is_trained(line: Line) -> bool:
    return not line["label"].endswith(UNTRAINED)


def _rank_of(line: Line) -> tuple[int, int]:
    return line["settings"]["basis.rank"], line["settings"]["basis.rounds"]


def _rank_row(line: Line) -> list[str]:
    rank, rounds = _rank_of(line)
    sent = f"{mean_bytes(line, 'basis_bytes_up'):,.0f}"
    figures = [
        format_number(line["extra"]["together"]),
        f"{ratio(line):.3f}",
        f"{line['extra']['seconds']['total']:.0f}",
    ]
    return [", ".join(map(str, federation_key(line))), str(rank), str(rounds), sent, *figures]


def _overlap_row(line: Line) -> list[str]:
    share, kind = line.get("overlap", (1.0, "all"))
    figures = [format_number(line["extra"][name]) for name in ("alone", "together")]
    whole = format_number(line["extra"]["centralised"])
    common = f"{100 * share:.0f} %" + (f", {kind}" if share < 1 else "")
    return [", ".join(map(str, federation_key(line))), common, line["label"], *figures, f"{ratio(line):.3f}", whole]


def check(lines: list[Line]) -> list[str]:
    """Lists failed expectations on any data.

    Together is not far behind alone, and each silo has sent its statistics. Rows with noise need not keep up, as
    noise may hide the structure of few users.
    """
    complaints = []
    for line in lines:
        if is_other_method(line):
            continue
        items = max(one["items"] for one in line["clients"])
        if epsilon_of(line) is None and ratio(line) < 0.85:
            complaints.append(f"{line['label']}: expected together not behind alone, got {ratio(line):.3f} of it")
        if (least := min(one["basis_bytes_up"] for one in line["clients"])) < 4 * items:
            complaints.append(f"{line['label']}: expected statistics of each item from each silo, got {least} bytes")
    return complaints
