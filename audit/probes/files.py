"""Walk of a part's mounts that looks for other parts' shards and ledgers."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from audit.evidence.evidence import ProbeResult, make_result
from shared.words import count_noun

SKIPPED = ("proc", "sys")  # folders of the root that belong to the kernel, without files of a part
MOST_ENTRIES = 5_000_000


@dataclass(frozen=True)
class SeenEntry:
    """Entry of a folder.

    place: as the part itself calls it. mount: the mount in which it lies. path: as this process reaches it.
    """

    path: Path
    place: str
    mount: str
    name: str
    mode: int  # the kind of entry alone, as in stat.S_IFMT

    @property
    def is_file(self) -> bool:
        """Whether the entry is a regular file."""
        return stat.S_ISREG(self.mode)


class EntryObserver(Protocol):
    """Observer that is given every entry of a walk."""

    def observe_entry(self, entry: SeenEntry) -> None: ...


@dataclass
class WalkResult:
    """Extent of a walk. `complete`: False for more entries than MOST_ENTRIES."""

    looked_at: int = 0
    closed: int = 0
    complete: bool = True

    @property
    def summary(self) -> str:
        """Extent of the walk, for the report."""
        closed = f", {count_noun(self.closed, 'folder')} closed to it" if self.closed else ""
        looked = f"{count_noun(self.looked_at, 'entry', 'entries')} looked at{closed}"
        return looked if self.complete else f"{looked} and more left"

    @property
    def is_conclusive(self) -> bool:
        """Whether what was not found may be called absent."""
        return self.complete and self.looked_at > 0


def walk_entries(root: Path, observers: Sequence[EntryObserver], mounts: Iterable[str] = ()) -> WalkResult:
    """Gives every entry beneath `root` to each observer.

    mounts: places at which something else is mounted.
    """
    result, top, known = WalkResult(), Path(os.path.abspath(root)), {*mounts}
    waiting: list[tuple[Path, str, str]] = [(top, "/", "/")]
    while waiting and result.complete:
        folder, place, mount = waiting.pop()
        for entry in _list_entries(folder, result):
            result.looked_at += 1
            inner = f"{place.rstrip('/')}/{entry.name}"
            within = inner if inner in known else mount
            seen = SeenEntry(folder / entry.name, inner, within, entry.name, _entry_mode(entry))
            for observer in observers:
                observer.observe_entry(seen)
            if stat.S_ISDIR(seen.mode) and not (folder == top and entry.name in SKIPPED):
                waiting.append((seen.path, inner, within))
        result.complete = result.looked_at <= MOST_ENTRIES
    return result


def _list_entries(folder: Path, result: WalkResult) -> Iterator[os.DirEntry[str]]:
    """Yields the entries of a folder; none where it may not be read."""
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        result.closed += 1


def _entry_mode(entry: os.DirEntry[str]) -> int:
    """Returns the kind of an entry, as in stat.S_IFMT.

    A folder's listing does not show what is mounted over a file, hence the stat.
    """
    if entry.is_symlink():
        return stat.S_IFLNK
    if entry.is_dir(follow_symlinks=False):
        return stat.S_IFDIR
    try:
        return stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return 0


KIND = "files"
PRIVATE = ("interactions.parquet", "ledger.jsonl")


@dataclass
class NameObserver:
    """Observer that counts files by name, in a part's own folders and elsewhere.

    A client may have files beneath its `own` folders; a part without such folders may have none.
    """

    own: Sequence[Path]
    mine: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)

    def observe_entry(self, entry: SeenEntry) -> None:
        """Counts a shard or ledger, separately for the part's own folders."""
        if entry.name in PRIVATE:
            side = self.mine if any(entry.path.is_relative_to(folder) for folder in self.own) else self.others
            side[entry.name] += 1

    def probe_results(self, seen: WalkResult) -> Iterator[ProbeResult]:
        """Yields one result for each searched name, and the control for own folders."""
        yield from (_check_others_files(self.others[name], name, seen) for name in PRIVATE)
        if self.own:
            yield _check_own_files(self.mine[PRIVATE[0]])


def _check_others_files(count: int, name: str, seen: WalkResult) -> ProbeResult:
    observed = f"{count or 'none'}; {seen.summary}"
    return make_result(KIND, name, "none but its own", observed, held=seen.is_conclusive and not count)


def _check_own_files(count: int) -> ProbeResult:
    """Checks, as a control, that the search finds the part's own shard."""
    name, observed = PRIVATE[0], str(count or "none")
    return make_result("control: its own files", name, "1 or more", observed, held=count > 0)
