"""Data sets by name: cached shards, and checks of public files against published digests."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import polars as pl

from benchmarks.common import VARIABLE
from benchmarks.harness.plan import Block
from client_service.data.interaction_files import load_shard, write_shard
from shared.errors import DataError, SettingsError
from simulation.datasets.dataset import Dataset
from simulation.datasets.load import load_dataset
from simulation.datasets.synthetic import generate_dataset
from simulation.partitioning.sources import Cut, Shards, cut_shards, find_shards

SYNTHETIC = re.compile(r"synthetic(?:-(\d+)x(\d+))?")
SPLIT_SEED = 0  # of the split where the data bring none; the paper's partitions are of one split too
WHOLE = "whole"


@dataclass(frozen=True)
class Cache:
    """Cache of shards.

    folder: place of the shards. data: folder with one folder per data set.
    """

    folder: Path
    data: Path | None

    def shards(self, data: str, block: Block, partition: int) -> Shards:
        """Returns the shards of one cut."""
        name = f"{_data_stem(data, block)}-{block.clients}-{block.cut}-{partition}"
        cut = Cut(block.clients, block.cut, partition, SPLIT_SEED)
        source = self._prepare_data(data, block)

        def write_parts(place: Path) -> None:
            parts = cut_shards(str(source), cut, place)
            if block.overlap < 1:
                rename_items(parts.paths, block)

        if block.overlap < 1:
            name += f"-overlap-{block.overlap:g}-{block.overlap_of}"
        folder = _write_once(self.folder / "shards" / name, write_parts)
        shards = find_shards(folder)
        if shards is None:
            raise DataError(f"{folder}: expected shards, got none; remove the folder and try again")
        return shards

    def cut_whole(self, data: str, block: Block) -> Path:
        """Returns the data set as one shard, with all edges and trained items."""
        source = self._prepare_data(data, block)

        def write_whole(place: Path) -> None:
            table = pl.read_parquet(source)
            trained = table.filter(pl.col("split") == "train")["item"].unique()
            write_shard(place, WHOLE, table.filter(pl.col("item").is_in(trained.implode())), None)

        return _write_once(self.folder / WHOLE / _data_stem(data, block), write_whole)

    def _prepare_data(self, data: str, block: Block) -> Path:
        """Returns one Parquet file of (user, item, split) without thin users and items."""
        name = _data_stem(data, block)

        def write_events(place: Path) -> None:
            place.mkdir(parents=True, exist_ok=True)
            dataset = self._read_dataset(data)
            drop_thin_users(dataset.events, block.fewest).write_parquet(place / f"{name}.parquet")

        return _write_once(self.folder / "data" / name, write_events) / f"{name}.parquet"

    def _read_dataset(self, data: str) -> Dataset:
        if made := SYNTHETIC.fullmatch(data):
            users, items = made.groups()
            size = {"users": int(users), "items": int(items)} if users else {}
            return generate_dataset(SPLIT_SEED, **size)
        return load_dataset(self.data_path(data), SPLIT_SEED, draws="table")

    def data_path(self, data: str) -> Path:
        """Returns the folder of a real data set; raises SettingsError if missing."""
        if self.data is None:
            raise SettingsError(f"data set {data!r}: expected --data with the folder that holds it, or {VARIABLE}")
        if not (self.data / data).exists():
            raise SettingsError(f"data set {data!r}: expected it beneath the folder given by --data, got nothing there")
        return self.data / data

    def data_problem(self, data: str) -> str:
        """Returns why a data set is not available, or an empty text."""
        try:
            return "" if SYNTHETIC.fullmatch(data) else str(self.data_path(data) and "")
        except SettingsError as error:
            return str(error)


@cache
def shard_digests(shards: tuple[Path, ...]) -> tuple[str, ...]:
    """Returns the digest of each shard's content, read once per process."""
    return tuple(load_shard(path).digest for path in shards)


def drop_thin_users(events: pl.DataFrame, fewest: int) -> pl.DataFrame:
    """Removes users and items with fewer than `fewest` records, until none is left.

    Records of all splits count.
    """
    table = events
    while fewest > 1:
        enough = (pl.len().over("user") >= fewest) & (pl.len().over("item") >= fewest)
        kept = table.filter(enough)
        if len(kept) == len(table):
            break
        table = kept
    trained = table.filter(pl.col("split") == "train")["user"].unique()
    return table.filter(pl.col("user").is_in(trained.implode()))


def rename_items(folders: Sequence[Path], block: Block) -> None:
    """Keeps a share of the items common, and renames every other item in each silo.

    The common items are those with training records in any silo: those with the most first, or drawn at random.
    """
    shards = [load_shard(path) for path in folders]
    events = {shard.name: shard.events_with_ids().cast({"split": pl.String}) for shard in shards}
    trained = pl.concat([table.filter(split="train").select("item") for table in events.values()])
    items = trained.group_by("item").len().sort("len", "item", descending=[True, False])["item"]
    if block.overlap_of == "random":
        items = items.sample(fraction=1.0, shuffle=True, seed=SPLIT_SEED)
    common = items.head(round(block.overlap * len(items)))
    for folder, (name, table) in zip(folders, events.items(), strict=True):
        own = pl.when(pl.col("item").is_in(common.implode())).then("item").otherwise(pl.col("item") + f"@{name}")
        write_shard(folder, name, table.with_columns(item=own), None)


def _data_stem(data: str, block: Block) -> str:
    return f"{data}-fewest{block.fewest}" if block.fewest else data


def _write_once(folder: Path, write: Callable[[Path], object]) -> Path:
    """Returns a folder, which `write` creates if missing; complete or not at all."""
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        fresh = Path(place) / folder.name
        write(fresh)
        shutil.move(fresh, folder)
    return folder


PUBLISHED = {
    "gowalla": {"train": "5eec1eb2edb8dd648377d348b8e136cf", "test": "c04e2c4bcd2389f53ed8281816166149"},
    "yelp2018": {"train": "1b8b5d22a227e01d6de002c53d32b4c4", "test": "0d57d7399862c32152b045ec5d2698e7"},
    "amazon-book": {"train": "c916ecac04ca72300a016228258b41ed", "test": "30f8ccfea18d25007ba9fb9aba4e174d"},
}
BLOCK = 1 << 20
Found = Literal["as published", "another file", "not there"]


@dataclass(frozen=True)
class VerifiedFile:
    """One published file; `path`: its expected place."""

    data: str
    split: str
    path: Path
    found: Found


def verify_data(folder: Path) -> list[VerifiedFile]:
    """Checks the files of each data set, such as gowalla/train.txt, plain or .gz.

    Raises DataError if `folder` is missing.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder with the data sets, got none")
    return list(_verify_files(folder))


def _verify_files(folder: Path) -> Iterator[VerifiedFile]:
    for data, sums in PUBLISHED.items():
        for split, published in sums.items():
            path = folder / data / f"{split}.txt"
            packed = path.with_name(f"{path.name}.gz")
            if path.exists() or packed.exists():
                path = path if path.exists() else packed
                yield VerifiedFile(
                    data, split, path, "as published" if md5_digest(path) == published else "another file"
                )
            else:
                yield VerifiedFile(data, split, path, "not there")


def md5_digest(path: Path) -> str:
    """Computes the MD5 of a file's content, unpacked for .gz.

    Raises DataError for an unreadable file.
    """
    total = hashlib.md5(usedforsecurity=False)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while block := file.read(BLOCK):
                total.update(block)
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: expected a readable file ({error})") from None
    return total.hexdigest()
