"""A ledger whose length and last hash are kept elsewhere too: one that was cut, or written anew, does not open.

Order of a durable entry: the ledger, then the heads' file, then whatever follows from the entry. Only entries from
which something follows need the second step at once (`seal=True`): a body leaves, or something is charged. Others wait
for the next such entry, for `LAG` of them, or for `seal`, so that a question costs no more than it did. A crash between
the two steps leaves a ledger that is a little longer than its head. It opens if the chain holds from the head on. One
that is shorter, or has another entry in that place, does not.

Every entry carries a MAC under the silo's key. So nobody else can write entries beyond the head; and a ledger that once
had a head is known by itself: without a head it is damaged. One without MACs is of an older version, or new, and is
adopted as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from client_service.boundary.ledger import Entry, Ledger, ends_in, follow_chain, hash_entry, parse_entry, read_lines
from client_service.boundary.ledger_heads import LedgerHead, LedgerHeads
from shared.errors import DataError
from shared.new_files import sync_path

ADOPTED = "adopted"  # kind of the entry by which an operator takes records as they are; see client_service/records.py
MARK = b'"mac":'  # in a line, where quotes within a text are escaped
LAG = 64  # entries without `seal` that a head may be behind


class HeadedLedger(Ledger):
    """`name`: the ledger's path in the heads' state directory."""

    def __init__(self, heads: LedgerHeads, name: str) -> None:
        """DataError, and nothing is changed, for a ledger that is shorter than its head, or another one."""
        self._heads, self._name = heads, name
        super().__init__(heads.state_directory / name)
        known = heads.head(name)
        if known is None and len(self):
            heads.adopted[name] = len(self)
        self._saved = None if known is None else known.count
        heads.note(name, LedgerHead(len(self), self.last_hash))

    def append(self, kind: str, *, seal: bool = False, **fields: Any) -> int:
        """As of any ledger. With `seal` the head is durable too when this returns."""
        if self._saved is None or not self._path.exists():  # or a crash would leave marked entries without a head
            self.seal()
        number = super().append(kind, **fields)
        self._heads.note(self._name, LedgerHead(number, self.last_hash))
        if seal or self._saved is None or number - self._saved >= LAG:
            self.seal()
        return number

    def seal(self) -> None:
        """The head is durable when this returns, and tells of every entry."""
        if not self._path.exists():
            self._path.touch()
            sync_path(self._path.parent)
        if self._saved == len(self):
            return
        self._heads.save()
        self._saved = len(self)

    def _marks(self, entry: Entry) -> Mapping[str, Any]:
        return {"mac": self._heads.mac(_purpose(self._name), hash_entry(entry).encode())}

    def _require_whole(self) -> None:
        end = find_fault(self._path, self._heads.head(self._name), self._heads.path)
        if fault := end or find_stranger(self._heads, self._name):
            raise DataError(fault)


def find_stranger(heads: LedgerHeads, name: str) -> str | None:
    """The first entry beyond a ledger's head that nobody with the silo's key has written, if there is one."""
    head, path = heads.head(name), heads.state_directory / name
    if head is None:
        return None
    for number, line in enumerate(islice(read_lines(path), head.count, head.count + LAG), start=head.count + 1):
        entry = parse_entry(line)
        content = hash_entry({key: value for key, value in entry.items() if key != "mac"}).encode()
        if not heads.has_mac(_purpose(name), content, str(entry.get("mac", ""))):
            return f"{path}, line {number}: expected the MAC that this client's key makes, got another"
    return None


def _purpose(name: str) -> str:
    return f"entry of {name}"


def find_fault(path: Path, head: LedgerHead | None, heads: Path) -> str | None:
    """What is wrong with the end of a ledger's file, if what its head tells is true. `heads`: where that stands."""
    lines = read_lines(path)
    if head is None:
        marked = any(MARK in line for line in lines)
        return f"{path}: expected its head in {heads}, got none: that was taken away" if marked else None
    count, last = next(iter(deque(enumerate(islice(lines, head.count), start=1), maxlen=1)), (0, b""))
    if count < head.count:
        return f"{path}: expected at least {head.count} entries, as {heads} tells, got {count}: its end was cut off"
    if count and not ends_in(parse_entry(last), head.hash):
        return f"{path}, line {count}: expected the entry that {heads} tells of, got another: it was written anew"
    tail = [parse_entry(line) for line in islice(lines, LAG + 1)]
    beyond, broken = follow_chain(tail, head.hash)
    if broken is not None:
        return f"{path}, line {count + broken}: expected the chain to hold, got another hash"
    if beyond > LAG:
        return f"{path}: expected at most {LAG} entries beyond the {head.count} that {heads} tells of, got more"
    return None
