"""A path given by the user -> which files hold the interactions, by split, and which one the titles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shared.errors import DataError
from simulation.datasets.content import kind, stem
from simulation.datasets.dataset import WHOLE, ordered_splits

READ = "LightGCN .txt, MovieLens .dat and u.data, RecBole .inter, .csv, .parquet, each plain or .gz"
KINDS = ("txt", "dat", "data", "inter", "csv", "parquet")
SPLIT_NAMES = {"train": "train", "valid": "valid", "validation": "valid", "val": "valid", "test": "test"}
NAMED = ("ratings.dat", "u.data", "ratings.csv", "ratings.parquet", "interactions.csv", "interactions.parquet")
ASIDE = ("items", "movies", "users", "user", "item", "links", "tags", "readme", "license", "licence")
TITLES = {"dat": ("movies.dat",), "data": ("u.item",), "csv": ("items.csv", "items.parquet", "movies.csv")}


@dataclass(frozen=True)
class Source:
    """files: split (or `WHOLE`) -> file, in order of precedence."""

    name: str
    files: Mapping[str, Path]
    titles: Path | None


def locate(path: Path) -> Source:
    """The interactions at `path`: a file, which is then split, or a folder with one file or with train and test files.

    Raises DataError for a missing path, an unknown format, and a folder with no or several candidates.
    """
    if not path.exists():
        raise DataError(f"{path}: expected a file or a folder, got nothing there")
    if path.is_dir():
        files = _only(path, _candidates(_listed(path)))
        return Source(path.resolve().name, files, _titles(path, next(iter(files.values()))))
    if kind(path) not in KINDS:
        raise DataError(f"{path}: expected {READ}, got the extension {kind(path)!r}")
    return Source(stem(path), {WHOLE: path}, _titles(path.parent, path))


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.is_file())
    except OSError as error:
        raise DataError(f"{folder}: expected a readable folder, got {error.strerror}") from None


def _only(folder: Path, candidates: list[dict[str, Path]]) -> dict[str, Path]:
    if not candidates:
        raise DataError(f"{folder}: expected one of {READ}, got no such file")
    if len(candidates) > 1:
        found = "; ".join(", ".join(file.name for file in files.values()) for files in candidates)
        raise DataError(f"{folder}: expected one data set, got {len(candidates)}: {found}")
    return ordered_splits(candidates[0], folder)


def _candidates(files: list[Path]) -> list[dict[str, Path]]:
    """Groups of train, valid and test files and well-known single files; without those, any file it could be."""
    groups: dict[tuple[str, str], dict[str, Path]] = {}
    named, others = [], []
    for file in (file for file in files if kind(file) in KINDS):
        prefix, _, last = stem(file).rpartition(".")
        if last in SPLIT_NAMES:
            _put(groups.setdefault((prefix, kind(file)), {}), SPLIT_NAMES[last], file)
        elif kind(file) == "inter" or file.name.removesuffix(".gz") in NAMED:
            named.append({WHOLE: file})
        elif stem(file).lower() not in ASIDE:
            others.append({WHOLE: file})
    return [*groups.values(), *named] or others


def _put(group: dict[str, Path], split: str, file: Path) -> None:
    if split in group:
        raise DataError(f"{file.parent}: expected one {split} file, got {group[split].name} and {file.name}")
    group[split] = file


def _titles(folder: Path, interactions: Path) -> Path | None:
    """The file of titles that uses the same item ids. Ids of LightGCN text are renumbered, so that MovieLens' own
    movies.dat beside it would give wrong titles: only items.csv and the like count there."""
    form = kind(interactions)
    names: Iterable[str] = TITLES.get(form, TITLES["csv"])
    if form == "inter":
        base = stem(interactions)
        prefix, _, last = base.rpartition(".")
        names = (f"{prefix if last in SPLIT_NAMES else base}.item",)
    found = [folder / f"{name}{end}" for name in names for end in ("", ".gz") if (folder / f"{name}{end}").is_file()]
    if len(found) > 1:
        raise DataError(f"{folder}: expected one file of titles, got {', '.join(file.name for file in found)}")
    return found[0] if found else None
