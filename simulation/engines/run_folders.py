"""Folders of runs: new, resumed, or sent as bytes to another machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shared.errors import SettingsError
from shared.files import replace_file
from simulation.partitioning.sources import SUMMARY, Cut, CutData, Shards, find_or_cut_shards, find_shards

Files = Mapping[str, bytes]
"""Contents by path beneath the folder, the file that was written first before the others."""
Marks = Mapping[str, tuple[int, int]]
"""When each file was written (nanoseconds) and its bytes."""


@dataclass(frozen=True)
class FolderChanges:
    """Changes of a folder: files written, and files deleted."""

    written: Files
    gone: tuple[str, ...] = ()


def read_files(folder: Path) -> Files:
    """Reads all files beneath the folder; none without a folder."""
    return {name: (folder / name).read_bytes() for name in mark_files(folder)}


def write_changes(folder: Path, changes: FolderChanges) -> None:
    """Applies changes in the order in which they were made.

    An interrupt leaves the files as one at the same moment of the original changes would have.
    """
    for name, content in changes.written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    for name in changes.gone:
        (folder / name).unlink(missing_ok=True)


def mark_files(folder: Path) -> Marks:
    """Returns the time and size of each file, in the order of writing."""
    found = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    ordered = sorted(found, key=lambda path: (found[path].st_mtime_ns, str(path)))
    return {str(path.relative_to(folder)): (found[path].st_mtime_ns, found[path].st_size) for path in ordered}


def changes_since(folder: Path, before: Marks) -> tuple[FolderChanges, Marks]:
    """Returns the changes since these marks, and the marks of now."""
    now = mark_files(folder)
    written = {name: (folder / name).read_bytes() for name, mark in now.items() if before.get(name) != mark}
    return FolderChanges(written, tuple(name for name in before if name not in now)), now


COMMAND = "command.json"


def open_run_folder(folder: Path, command: Mapping[str, Any]) -> None:
    """Notes the command in the folder.

    Raises SettingsError for a folder with other files, or of another command.
    """
    path, given = folder / COMMAND, json.loads(json.dumps(command))
    if not path.exists():
        if any(folder.iterdir()):
            raise SettingsError(f"--out: expected a new or empty folder, or the one of the same command, got {folder}")
        return replace_file(path, json.dumps(given, indent=1).encode())
    kept = json.loads(path.read_text(encoding="utf-8"))
    if other := sorted(name for name in given.keys() | kept.keys() if given.get(name) != kept.get(name)):
        raise SettingsError(f"--out: expected the command that {folder} was begun with, got another {other[0]}")
    return None


def reuse_or_cut_shards(data: str, cut: Cut, folder: Path, cut_anew: CutData | None = None) -> Shards:
    """Returns the shards that an earlier process has cut completely, or cuts them.

    See `find_or_cut_shards`.
    """
    found = find_shards(folder) if (folder / SUMMARY).exists() else None
    return find_or_cut_shards(data, cut, folder, cut_anew) if found is None else found


def describe_command(data: str, cut: Cut, **settings: Any) -> dict[str, Any]:
    """Returns the values on which the outcome of a command depends, in JSON types."""
    words = asdict(cut)
    words["file_options"] = {"columns": dict(cut.file_options.columns), "delimiter": cut.file_options.delimiter}
    if values := getattr(cut.file_options, "values", {}):
        words["file_options"]["values"] = {name: list(said) for name, said in values.items()}
    words["edges"] = None if cut.edges is None else str(cut.edges)
    for name in ("small", "edges"):  # folders of earlier versions have none
        if words[name] is None:
            del words[name]
    return {"data": data, **words, **settings}
