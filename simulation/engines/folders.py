"""A folder's files as bytes, so that a silo can live on another machine; and what has changed in it since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from client_service.data.files import replace_file

Files = Mapping[str, bytes]
"""Contents by path beneath the folder, the file that was written first before the others."""
Marks = Mapping[str, tuple[int, int]]
"""When each file was written (nanoseconds) and its bytes."""


@dataclass(frozen=True)
class FolderChanges:
    """What has been written and what has gone."""

    written: Files
    gone: tuple[str, ...] = ()


def read_files(folder: Path) -> Files:
    """All files beneath the folder; none where there is no such folder."""
    return {name: (folder / name).read_bytes() for name in mark_files(folder)}


def write_changes(folder: Path, changes: FolderChanges) -> None:
    """Make the changes in the order in which they were made first: whatever interrupts this leaves what an interrupt
    there would have left."""
    for name, content in changes.written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    for name in changes.gone:
        (folder / name).unlink(missing_ok=True)


def mark_files(folder: Path) -> Marks:
    """When and how long, by name, in the order of writing."""
    found = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    ordered = sorted(found, key=lambda path: (found[path].st_mtime_ns, str(path)))
    return {str(path.relative_to(folder)): (found[path].st_mtime_ns, found[path].st_size) for path in ordered}


def changes_since(folder: Path, before: Marks) -> tuple[FolderChanges, Marks]:
    """What has changed since these marks, and the marks of now."""
    now = mark_files(folder)
    written = {name: (folder / name).read_bytes() for name, mark in now.items() if before.get(name) != mark}
    return FolderChanges(written, tuple(name for name in before if name not in now)), now
