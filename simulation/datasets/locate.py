"""A path given by the user -> which files hold the interactions, by split, and which one the titles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from shared.errors import DataError
from simulation.datasets.content import file_stem, format_extension
from simulation.datasets.dataset import WHOLE, ordered_splits
from simulation.datasets.formats import FORMATS, READ

SPLIT_NAMES = {"train": "train", "valid": "valid", "validation": "valid", "val": "valid", "test": "test"}
ASIDE = ("items", "movies", "users", "user", "item", "links", "tags", "readme", "license", "licence")


@dataclass(frozen=True)
class Files:
    """interactions: split (or `WHOLE`) -> file, in order of precedence. titles: the file of titles, if there is one."""

    name: str
    interactions: Mapping[str, Path]
    titles: Path | None


def locate_files(path: Path) -> Files:
    """The files at `path`: one file, which is then split, or a folder with one file or with train and test files.

    Raises DataError for a missing path, an unknown format, and a folder with no or several candidates.
    """
    if not path.exists():
        raise DataError(f"{path}: expected a file or a folder, got nothing there")
    if path.is_dir():
        files = _require_one(path, _candidate_files(_list_files(path)))
        return Files(path.resolve().name, files, _title_file(path, next(iter(files.values()))))
    require_format(path)
    return Files(file_stem(path), {WHOLE: path}, _title_file(path.parent, path))


def require_format(path: Path) -> str:
    """The extension that names the file's format. Raises DataError for one that is not read."""
    if format_extension(path) not in FORMATS:
        raise DataError(f"{path}: expected {READ}, got the extension {format_extension(path)!r}")
    return format_extension(path)


def _list_files(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.iterdir() if file.is_file())
    except OSError as error:
        raise DataError(f"{folder}: expected a readable folder, got {error.strerror}") from None


def _require_one(folder: Path, candidates: list[dict[str, Path]]) -> dict[str, Path]:
    if not candidates:
        raise DataError(f"{folder}: expected one of {READ}, got no such file")
    if len(candidates) > 1:
        names = "; ".join(", ".join(file.name for file in files.values()) for files in candidates)
        raise DataError(f"{folder}: expected one data set, got {len(candidates)}: {names}")
    return ordered_splits(candidates[0], folder)


def _candidate_files(files: list[Path]) -> list[dict[str, Path]]:
    """Groups of train, valid and test files and well-known single files; without those, any file it could be."""
    groups: dict[tuple[str, str], dict[str, Path]] = {}
    known, others = [], []
    for file in (file for file in files if format_extension(file) in FORMATS):
        prefix, _, last = file_stem(file).rpartition(".")
        if last in SPLIT_NAMES:
            _add_split(groups.setdefault((prefix, format_extension(file)), {}), SPLIT_NAMES[last], file)
        elif any(fnmatch(file_stem(file), known_stem) for known_stem in FORMATS[format_extension(file)].stems):
            known.append({WHOLE: file})
        elif file_stem(file).lower() not in ASIDE:
            others.append({WHOLE: file})
    return [*groups.values(), *known] or others


def _add_split(group: dict[str, Path], split: str, file: Path) -> None:
    if split in group:
        raise DataError(f"{file.parent}: expected one {split} file, got {group[split].name} and {file.name}")
    group[split] = file


def _title_file(folder: Path, interactions: Path) -> Path | None:
    """The one file of titles that uses the same item ids."""
    prefix, _, last = file_stem(interactions).rpartition(".")
    own = prefix if last in SPLIT_NAMES else file_stem(interactions)
    names = [name.format(stem=own) for name in FORMATS[format_extension(interactions)].titles]
    files = [folder / f"{name}{end}" for name in names for end in ("", ".gz") if (folder / f"{name}{end}").is_file()]
    if len(files) > 1:
        raise DataError(f"{folder}: expected one file of titles, got {', '.join(file.name for file in files)}")
    return files[0] if files else None
