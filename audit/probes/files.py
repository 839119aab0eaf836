"""Mounted file systems -> whether this part could read others' shards or ledgers, or command a container engine."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from audit.evidence import Probe
from shared.words import counted

PRIVATE = ("interactions.parquet", "ledger.jsonl")
ENGINES = ("docker.sock", "containerd.sock", "crio.sock", "podman.sock")
SKIPPED = ("proc", "sys", "dev")  # of the root: the kernel's own, with nobody's files
MOST_ENTRIES = 5_000_000


@dataclass
class Search:
    """What was found, in numbers alone. `complete` is False where there was more than could be looked at."""

    own: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    looked_at: int = 0
    closed: int = 0
    complete: bool = True


def probe(root: Path, own: Sequence[Path]) -> list[Probe]:
    """A client may have what lies beneath its `own` folders; whoever names none may have nothing of the kind."""
    found = search(root, own)
    probes = [_none_of_others(found, name) for name in PRIVATE]
    probes.append(_no_engine(found))
    if own:
        probes.append(_finds_its_own(found))
    return probes


def search(root: Path, own: Sequence[Path]) -> Search:
    """By name, through every folder that may be read, following no link."""
    found, mine = Search(), [Path(os.path.abspath(folder)) for folder in own]
    skipped = {Path(os.path.abspath(root)) / name for name in SKIPPED}
    waiting = [Path(os.path.abspath(root))]
    while waiting and found.complete:
        folder = waiting.pop()
        for entry in _entries(folder, found):
            found.looked_at += 1
            if entry.name in PRIVATE or entry.name in ENGINES:
                side = found.own if any(folder.is_relative_to(one) for one in mine) else found.others
                side[entry.name] += 1
            if entry.is_dir(follow_symlinks=False) and folder / entry.name not in skipped:
                waiting.append(folder / entry.name)
        found.complete = found.looked_at <= MOST_ENTRIES
    return found


def _entries(folder: Path, found: Search) -> Iterator[os.DirEntry[str]]:
    """None of a folder that may not be read: what is in it may not be read either."""
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError:
        found.closed += 1


def _none_of_others(found: Search, name: str) -> Probe:
    return _probe(name, "none but its own", found.others[name], found)


def _no_engine(found: Search) -> Probe:
    there = sum(found.own[name] + found.others[name] for name in ENGINES)
    return _probe("socket of a container engine", "none", there, found)


def _probe(name: str, expected: str, count: int, found: Search) -> Probe:
    closed = f", {counted(found.closed, 'folder')} closed to it" if found.closed else ""
    looked = f"{counted(found.looked_at, 'entry', 'entries')} looked at{closed}"
    rest = looked if found.complete else f"{looked} and more left"
    held = found.complete and found.looked_at > 0 and not count
    return Probe(kind="files", name=name, expected=expected, observed=f"{count or 'none'}; {rest}", held=held)


def _finds_its_own(found: Search) -> Probe:
    """The control: a search that does not find what is there says nothing about what is not."""
    name, count = PRIVATE[0], found.own[PRIVATE[0]]
    observed = str(count or "none")
    return Probe(kind="control: its own files", name=name, expected="1 or more", observed=observed, held=count > 0)
