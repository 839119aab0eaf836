"""Floors and the untrained start in each silo of small cuts of sparse data sets.

No services run and nothing is trained. Each measured cell is a file in the cache folder, so that the same command
resumes after an interrupt.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from scipy import sparse
from threadpoolctl import threadpool_limits

from benchmarks.common import locate_data, render_table
from benchmarks.harness.data import drop_thin_users
from benchmarks.harness.measure import FLOOR_LABELS
from benchmarks.harness.tables import format_number
from benchmarks.sparse.federation import (
    LEVEL,
    Gains,
    choose_sums,
    make_list_pair,
    measure_gains,
    place_items,
    ratio_interval,
)
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import LABELS, METRICS, PRIMARY, PerUser
from client_service.evaluation.ranking import find_hits
from client_service.sums.basis import CommonBasis
from client_service.training.filter_search import best_filter
from shared.errors import DataError
from shared.files import replace_file
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from simulation.datasets.dataset import WHOLE, Dataset, assemble_dataset
from simulation.datasets.load import load_dataset, read_events
from simulation.datasets.synthetic import generate_dataset
from simulation.experiments.floors import FLOORS, START, VERSION, closed_tops
from simulation.partitioning.partition import partition_dataset, write_partition
from simulation.partitioning.sources import SYNTHETIC

KINDS = ("pairs", "fields", "sessions")


def read_source(source: dict[str, Any], folder: Path, seed: int) -> Dataset:
    """Reads the data set in `folder`.

    kind: pairs, any format that `simulation` reads; fields, lines of user, item and a weight; sessions, lines of item
    ids, each line a user. Raises DataError for an unknown kind or an unreadable file.
    """
    kind = source.get("kind", "pairs")
    if kind not in KINDS:
        raise DataError(f"sets: {source['data']}: expected one of {', '.join(KINDS)}, got {kind!r}")
    paths = [folder / name for name in source.get("files", [])]
    if kind == "sessions":
        events = pl.concat([read_sessions(path, source.get("items", 1)) for path in paths])
        kept = events["user"].unique(maintain_order=True).tail(source.get("users", events["user"].n_unique()))
    else:
        events = _read_pairs(paths, folder, kind)
        users = events["user"].unique().sort()
        kept = users.sample(min(source.get("users", len(users)), len(users)), seed=seed)
    drawn = events.filter(pl.col("user").is_in(kept.implode())).with_columns(split=pl.lit("train"))
    return assemble_dataset(
        source["data"], {WHOLE: drop_thin_users(drawn, source.get("fewest", 0)).drop("split")}, seed=seed, draws="table"
    )


def read_sessions(path: Path, fewest: int) -> pl.DataFrame:
    """Reads (user, item) of sessions with at least `fewest` different items.

    A session's number is its user.
    """
    with gzip.open(path, "rt", encoding="ascii") as lines:
        sessions = [(f"{number:07d}", list(dict.fromkeys(line.split()))) for number, line in enumerate(lines)]
    kept = [(user, items) for user, items in sessions if len(items) >= fewest]
    return pl.DataFrame(kept, schema=["user", "item"], orient="row").explode("item")


def _read_pairs(paths: list[Path], folder: Path, kind: str) -> pl.DataFrame:
    if kind == "fields":
        names = ["user", "item", "weight"]
        tables = [
            pl.read_csv(p, separator="\t", has_header=False, new_columns=names, infer_schema=False) for p in paths
        ]
    else:
        tables = [read_events(path).table for path in paths] or [load_dataset(folder, 0).events]
    return pl.concat([table.select("user", "item") for table in tables]).unique(maintain_order=True)


Row = dict[str, Any]
Values = Mapping[str, Mapping[str, PerUser]]
"""By the name of a floor, then of a metric: of every test user of a silo."""
TOGETHER = "together"  # the start with the sums of all silos


class SmallCut(NamedTuple):
    """One data set and one way of dividing it."""

    source: Row
    method: str
    clients: int

    def file_name(self, config: Row) -> str:
        """Returns the name of the cell's file, which depends on its settings."""
        said = json.dumps([self.source, config["seed"], config["resamples"]], sort_keys=True)
        digest = hashlib.sha256(said.encode()).hexdigest()[:8]
        return f"{self.source['data']}-{self.method}-{self.clients}-v{VERSION}-{digest}.json"


def run(config: Row, *, quick: bool, data: Path | None, out: Path) -> list[Row]:
    """Measures one row per data set and cut, or gives the reason why it cannot."""
    rows = []
    with threadpool_limits(1):
        for source in config["sets"]:
            whole = _read_dataset(source, data, config["seed"])
            for cut in config["cuts"]:
                cell = SmallCut(source, cut["method"], cut["clients"])
                kept = None if quick else out / cell.file_name(config)
                rows.append(_kept_row(kept) or _measure_cell(cell, whole, config, kept))
    return rows


def _read_dataset(source: Row, data: Path | None, seed: int) -> Dataset:
    name = source["data"]
    return generate_dataset(seed) if name == SYNTHETIC else read_source(source, Path(locate_data(name, data)), seed)


def _kept_row(path: Path | None) -> Row | None:
    """Reads the stored row of this cell."""
    if path is None or not path.exists():
        return None
    found: Row = json.loads(path.read_text(encoding="utf-8"))
    return found


def _measure_cell(cell: SmallCut, whole: Dataset, config: Row, kept: Path | None) -> Row:
    began = time.perf_counter()
    head = {"data": cell.source["data"], "cut": cell.method, "clients": cell.clients}
    head |= {"tuned": cell.source.get("tuned", False), "users": whole.events["user"].n_unique()}
    head |= {"items": whole.events["item"].n_unique(), "pairs": len(whole.events)}
    try:
        silos = list(_silo_values(cell, whole))
    except DataError as error:
        return {**head, "problem": str(error)}
    row = {**head, **summarise(silos, config), "seconds": round(time.perf_counter() - began, 1)}
    if kept is not None:
        replace_file(kept, json.dumps(row).encode())
    return row


def _silo_values(cell: SmallCut, whole: Dataset) -> Iterator[Values]:
    parts = partition_dataset(whole, clients=cell.clients, method=cell.method, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        shards, items = place_items([load_shard(path) for path in write_partition(whole, parts, Path(folder))])
    basis = choose_sums(shards, items, 0)
    for shard in shards:
        yield measure_silo(shard, basis)


def measure_silo(shard: Shard, basis: CommonBasis) -> Values:
    """Measures every floor, the untrained start, and the start with sums, by user."""
    seen = sparse.csr_array(shard.train + shard.valid)
    spectrum = low_spectrum(shard.train, MethodSettings().cutoff)
    chosen = best_filter(shard, spectrum).choice
    lists = make_list_pair(shard, basis, spectrum, chosen)
    hits = {START: lists.alone, TOGETHER: lists.together}
    for name, top in closed_tops(shard, spectrum, chosen).items():
        if top is not None:
            hits[name] = find_hits(top, shard.test, seen)
    return {name: {key: metric.per_user(*one) for key, metric in METRICS.items()} for name, one in hits.items()}


def summarise(silos: list[Values], config: Row) -> Row:
    """Computes means of every floor and start, and the ratio to the best floor.

    The ratio has its interval. A floor that is missing in one silo, because EASE does not fit there, is missing.
    gains: together over the start.
    """
    tested = [silo for silo in silos if len(silo[START][PRIMARY])]
    names = [name for name in (*FLOORS, START, TOGETHER) if all(name in silo for silo in tested)]
    pooled = {name: {key: np.concatenate([silo[name][key] for silo in tested]) for key in METRICS} for name in names}
    clients = {
        name: {key: float(np.mean([silo[name][key].mean() for silo in tested])) for key in METRICS} for name in names
    }
    users = {name: {key: float(values.mean()) for key, values in pooled[name].items()} for name in names}
    best = max((name for name in names if name in FLOORS), key=lambda name: users[name][PRIMARY])
    draws = (config["resamples"], config["seed"])
    ratio = {key: ratio_interval(pooled[START][key], pooled[best][key], *draws) for key in METRICS}
    return {
        "test_users": len(pooled[START][PRIMARY]),
        "user_mean": users,
        "client_mean": clients,
        "best": best,
        "ratio": ratio,
        "gains": _measure_gains(tested, *draws)._asdict(),
    }


def _measure_gains(silos: list[Values], resamples: int, seed: int) -> Gains:
    together, alone = ([silo[name][PRIMARY] for silo in silos] for name in (TOGETHER, START))
    return measure_gains(together, alone, resamples, seed)


NOTE = f"""{LABELS[PRIMARY].title}, user mean, test items. *Ratio*: the untrained start over the floor that is best at
the user mean, with the {LEVEL:.0f} % bootstrap interval over users; beside it that of {LABELS["recall"].title} over the
same floor, and that of the client means over the floor that is best there. *Chosen on*: the rules of the fusion were
chosen on other pairs of this set, so that its figures are not blind; those of the others were read once, when the rules
were fixed. One partition, one seed. Sets are cut down: see the table's README. *Together*: the start with sums of all
silos, of the kind that the number of training pairs chooses, and over the start its ratio with interval; the silos
whose ratio is below 1, those whose whole interval is, of how many; and the mean ratio of the worst 5 % of the silos, at
least one, with what that would be if each user's two lists changed places at random."""


def render(rows: list[Row]) -> str:
    """Renders one row per cell."""
    head = ["data", "users x items", "cut", "silos", "test users", *(FLOOR_LABELS[name] for name in (*FLOORS, START))]
    head += ["best floor", "ratio", "of recall", "of client means", "together", "over the start", "silos below 1"]
    head += ["worst silos", "chosen on"]
    measured = [row for row in rows if "problem" not in row]
    lines = [_cell_line(row) for row in measured]
    problems = [
        f"- {row['data']}, {row['cut']}, {row['clients']} silos: {row['problem']}" for row in rows if "problem" in row
    ]
    return "\n\n".join(
        [NOTE, _count_cells(measured), render_table(head, lines), *(["\n".join(problems)] if problems else [])]
    )


def _count_cells(rows: list[Row]) -> str:
    """Describes in how many cells the start is ahead, with and without certainty."""
    every = np.array([row["ratio"][PRIMARY] for row in rows])
    ahead, surely, behind = (int(part.sum()) for part in (every[:, 0] >= 1, every[:, 1] > 1, every[:, 2] < 1))
    return (
        f"{len(rows)} cells: not behind in {ahead}, ahead by the whole interval in {surely}, behind by it in {behind}; "
        f"mean of the ratios {every[:, 0].mean():.3f}. {_count_gains(rows)}"
    )


def _count_gains(rows: list[Row]) -> str:
    """Describes the ratios over the start of all silos in all cells."""
    gains = [Gains(**row["gains"]) for row in rows]
    below, wholly, counted = (sum(getattr(one, name) for one in gains) for name in ("below", "wholly", "counted"))
    ratios, by_chance = np.array([one.ratio[0] for one in gains]), counted * (100 - LEVEL) / 200
    return (
        f"Together over the start: mean of the ratios {ratios.mean():.3f}, least {ratios.min():.3f}; of {counted} "
        f"silos {below} below 1, {wholly} by the whole interval, where chance alone makes {by_chance:.0f}."
    )


def _cell_line(row: Row) -> list[str]:
    users, clients, best = row["user_mean"], row["client_mean"], row["best"]
    figures = [format_number(users[name][PRIMARY]) if name in users else "-" for name in (*FLOORS, START)]
    ratio, low, high = row["ratio"][PRIMARY]
    sizes = [row["data"], f"{row['users']:,} x {row['items']:,}", row["cut"], str(row["clients"])]
    both = clients[START][PRIMARY] / max(clients[name][PRIMARY] for name in clients if name in FLOORS)
    ratios = [f"{ratio:.3f} ({low:.3f} to {high:.3f})", f"{row['ratio']['recall'][0]:.3f}", f"{both:.3f}"]
    gains = Gains(**row["gains"])
    over, least, most = gains.ratio
    together = [format_number(users[TOGETHER][PRIMARY]), f"{over:.3f} ({least:.3f} to {most:.3f})"]
    together += [
        f"{gains.below}, {gains.wholly} of {gains.counted}",
        f"{gains.worst:.2f} (by chance {gains.by_chance:.2f})",
    ]
    tuned = "yes" if row["tuned"] else ""
    return [*sizes, str(row["test_users"]), *figures, FLOOR_LABELS[best], *ratios, *together, tuned]


def check(rows: list[Row]) -> list[str]:
    """Lists cells that are behind by their whole interval.

    Either the start behind a floor, or the start with sums behind the start.
    """
    measured = [row for row in rows if "problem" not in row]
    behind = [row for row in measured if row["ratio"][PRIMARY][2] < 1.0]
    harmed = [row for row in measured if row["gains"]["ratio"][2] < 1.0]
    return [
        f"{row['data']}, {row['cut']}, {row['clients']} silos: expected the sums to do no harm, "
        f"got {row['gains']['ratio'][0]:.3f} of the start, at most {row['gains']['ratio'][2]:.3f}"
        for row in harmed
    ] + [
        f"{row['data']}, {row['cut']}, {row['clients']} silos: expected the start not behind {row['best']}, "
        f"got {row['ratio'][PRIMARY][0]:.3f} of it, at most {row['ratio'][PRIMARY][2]:.3f}"
        for row in behind
    ]
