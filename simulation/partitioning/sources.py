"""Shards on disk, made from the data that a command names.

These are a data set, a folder of shards, or the name of generated data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shared.errors import DataError, SettingsError
from simulation.datasets.columns import DEFAULT_OPTIONS

if TYPE_CHECKING:
    from simulation.datasets.columns import FileOptions
    from simulation.datasets.dataset import Dataset
    from simulation.datasets.ratings import LeastRating
    from simulation.datasets.splits import SplitKind
    from simulation.partitioning.partition import Partition


def number_silos(silos: int) -> tuple[str, ...]:
    """Returns the numbers 1 to `silos` as text, with leading zeros, so that names sort."""
    digits = len(str(silos))
    return tuple(f"{number:0{digits}d}" for number in range(1, silos + 1))


SYNTHETIC = "synthetic"
CHAIN = "chain"
SHOPS = "shops"  # those of a chain and, of four or more, a last one that sells nothing that they sell
FEWEST_SHOPS = 4  # for one of them to be alone with its items
USUAL_METHOD = "spectral"
USUAL_CLIENTS = 4
SUMMARY = "partition.json"
HIDDEN_PAIRS = "hidden.parquet"  # of users and items that silos do not learn of: for an evaluation alone


@dataclass(frozen=True)
class Cut:
    """Options for dividing a data set among clients.

    number: the seed, which is Section D.2's partition number. Without a method generated shops are divided as they are,
    and any other data set spectrally; without a number of clients there are four. scenario: in place of a method, see
    `divide_by_scenario`. small: users of its small shop, if any. rules: how the task reads data, by the names that it
    has for it. file_options: which columns of a file hold what. edges: of a graph whose nodes are the data, the file of
    its edges.
    """

    clients: int | None = None
    method: str | None = None
    number: int = 0
    split_seed: int = 0
    min_rating: LeastRating = None
    split: SplitKind | None = None
    rules: Mapping[str, Any] = field(default_factory=dict)
    scenario: str | None = None
    small: int | None = None
    file_options: FileOptions = DEFAULT_OPTIONS
    edges: Path | None = None


@dataclass(frozen=True)
class Shards:
    """Shards on disk, with the summary of their partition if there is one."""

    paths: tuple[Path, ...]
    summary: dict[str, Any]

    @property
    def edges_kept(self) -> float | None:
        """Share of training edges inside clients, where it is known."""
        return self.summary.get("edges_kept")

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on dropped interactions, and on how the data were read."""
        notes = tuple(self.summary.get("notes", ()))
        if self.edges_kept is None or self.edges_kept == 1.0 or "caption" in self.summary:
            return notes
        dropped = f"{1 - self.edges_kept:.1%} of the training interactions lie between clients and are dropped"
        return f"{dropped}; --method users keeps all of them", *notes


CutData = Callable[[str, Cut, Path], Shards]
"""Read, divide and write a data set."""


def find_or_cut_shards(data: str, cut: Cut, folder: Path, cut_anew: CutData | None = None) -> Shards:
    """Returns a folder's shards as they are, or divides another data set into `folder`.

    Raises SettingsError for options that would divide existing shards in another way.
    """
    found = find_shards(Path(data))
    if found is None:
        return (cut_anew or cut_shards)(data, cut, folder)
    count = len(found.paths)
    if cut.clients not in (None, count):
        raise SettingsError(f"--clients: expected {count}, as many as {data} has shards, or none, got {cut.clients}")
    if cut.rules:
        raise SettingsError("--rule: expected none with a folder of shards, which are read as they are")
    if cut.edges is not None:
        raise SettingsError("--edges: expected none with a folder of shards, which are read as they are")
    if cut.file_options != DEFAULT_OPTIONS:
        raise SettingsError("--columns, --delimiter: expected none with a folder of shards, which are read as they are")
    if cut.split is not None:
        raise SettingsError(f"--split: expected none with a folder of shards, which are split, got {cut.split}")
    if cut.min_rating is not None:
        raise SettingsError("--min-rating: expected none with a folder of shards, which are read as they are")
    if cut.method is not None:
        raise SettingsError(f"--method: expected none with a folder of shards, which are divided, got {cut.method}")
    if cut.scenario is not None:
        raise SettingsError(f"--scenario: expected none with a folder of shards, which are divided, got {cut.scenario}")
    return found


def cut_shards(data: str, cut: Cut, folder: Path) -> Shards:
    """Reads, divides and writes a data set, with the summary beside the shards."""
    from simulation.partitioning.partition import write_partition

    if cut.rules:
        raise SettingsError("--rule: expected none for interactions of users, got some")
    dataset, parts = _divided_data(data, cut)
    paths = write_partition(dataset, parts, folder)
    summary = _partition_summary(dataset.name, (*dataset.notes, *parts.notes), parts)
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1), encoding="utf-8")
    if parts.hidden is not None:
        parts.hidden.write_parquet(folder / HIDDEN_PAIRS)
    return Shards(tuple(paths), summary)


def _divided_data(data: str, cut: Cut) -> tuple[Dataset, Partition]:
    from simulation.datasets.chain import generate_chain
    from simulation.datasets.load import load_dataset
    from simulation.datasets.synthetic import USERS, USERS_OF_A_SILO, generate_dataset
    from simulation.partitioning.partition import partition_dataset, partition_shops
    from simulation.partitioning.scenarios import divide_by_scenario

    clients = cut.clients or USUAL_CLIENTS
    if cut.small is not None and cut.scenario is None:
        raise SettingsError("--small: expected it with --scenario disjoint or disjoint-genres alone, got no scenario")
    if cut.scenario is not None and cut.method is not None:
        raise SettingsError(f"--scenario: expected none with --method {cut.method}, got {cut.scenario}")
    if data in (CHAIN, SHOPS, SYNTHETIC) and cut.split is not None:
        raise SettingsError(f"--split: expected none with {data}, whose data are generated, got {cut.split}")
    if data in (CHAIN, SHOPS):
        chain = generate_chain(cut.split_seed, clients, lone=data == SHOPS and clients >= FEWEST_SHOPS)
        if cut.method is None and cut.scenario is None:
            return chain.dataset, partition_shops(chain.dataset, chain.shops, chain.new)
        dataset = chain.dataset
    elif data == SYNTHETIC:
        dataset = generate_dataset(cut.split_seed, users=max(USERS, USERS_OF_A_SILO * clients))
    else:
        dataset = load_dataset(Path(data), cut.split_seed, cut.min_rating, cut.split, "table", cut.file_options)
    if cut.scenario is not None:
        return divide_by_scenario(dataset, cut.scenario, clients, cut.number, cut.small)
    method = cut.method or USUAL_METHOD
    return dataset, partition_dataset(dataset, clients=clients, method=method, seed=cut.number)


def _partition_summary(name: str, notes: Sequence[str], parts: Partition) -> dict[str, Any]:
    clients = [{"client": part.name, **asdict(part.sizes)} for part in parts.parts]
    how = {"method": parts.method, "partition": parts.seed, "edges_kept": parts.edges_kept}
    return {"data": name, **how, "clients": clients, "notes": list(notes)}


def holds_shards(folder: Path, name: str) -> bool:
    """Tells whether subfolders are shards with a file of this name."""
    return folder.is_dir() and any(folder.glob(f"*/{name}"))


def find_shards(folder: Path) -> Shards | None:
    """Finds the shards in a folder's subfolders; None for a data set."""
    if not folder.is_dir():
        return None
    names = ("interactions.parquet", "sessions.parquet", "nodes.parquet")
    paths = tuple(sorted(path.parent for name in names for path in folder.glob(f"*/{name}")))
    if not paths:
        return None
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except FileNotFoundError:
        summary = {}
    except ValueError:
        raise DataError(f"{folder / SUMMARY}: expected JSON written by a partition, got something else") from None
    return Shards(paths, summary)
