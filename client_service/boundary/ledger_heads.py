"""Heads of ledgers: length and last hash, in a file with a MAC.

They detect a ledger that was cut or rewritten.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from client_service.boundary.ledger import (
    GENESIS,
    Entry,
    Ledger,
    follow_chain,
    has_hash,
    hash_entry,
    parse_entry,
    read_lines,
)
from shared.errors import DataError
from shared.files import PRIVATE, replace_file, sync_path
from shared.message import Message
from shared.protocol.signing.keys import PrivateKey, derive_secret, fingerprint

NAME = "ledger-heads.json"
LABEL = b"lpsfed ledger heads 1"  # of the MAC's key: no other use of the silo's key has it
PURPOSE = "heads"
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class LedgerHead:
    """Number of a ledger's entries, and the hash of the last."""

    count: Annotated[int, Field(ge=0)] = 0
    hash: str = GENESIS


class HeadsFile(Message):
    """Content of the file of heads.

    key: fingerprint of the client's public key. digests: of other files of the state directory, by name.
    """

    key: str
    heads: dict[str, LedgerHead] = Field(default_factory=dict)
    digests: dict[str, str] = Field(default_factory=dict)
    mac: str = ""

    def content(self) -> bytes:
        """Returns the bytes that the MAC covers."""
        return json.dumps(self.model_dump(exclude={"mac"}), sort_keys=True, separators=(",", ":")).encode()


class LedgerHeads:
    """Heads of the ledgers of one state directory; safe for threads."""

    def __init__(self, state_directory: Path, key: PrivateKey, directory: Path | None = None) -> None:
        """Reads the file of heads.

        directory: where the file lies, by default in the state directory. Raises DataError for another file, and for
        one whose MAC was not made with this key.
        """
        self.state_directory, self.path = state_directory, (directory or state_directory) / NAME
        self._set_key(key)
        self._lock = threading.Lock()
        found = self._read()
        self.existed = found is not None
        self._heads = dict(found.heads) if found else {}
        self._digests = dict(found.digests) if found else {}
        self.adopted: dict[str, int] = {}  # number of entries of ledgers that are older than their heads, for the log

    def __iter__(self) -> Iterator[str]:
        """Yields the names of the ledgers: their paths in the state directory."""
        return iter(sorted(self._heads))

    def head(self, name: str) -> LedgerHead | None:
        """Returns a ledger's recorded head; None for an unknown ledger."""
        return self._heads.get(name)

    def set_head(self, name: str, head: LedgerHead) -> None:
        """Records the head of a ledger whose entries are durable; `save` writes it."""
        with self._lock:
            self._heads[name] = head

    def require_digest(self, name: str, content: bytes) -> None:
        """Checks a file that never changes, and records its digest when it is first seen.

        Raises DataError if the file is another one by now.
        """
        digest = hashlib.sha256(content).hexdigest()
        with self._lock:
            if self._digests.setdefault(name, digest) != digest:
                path = self.state_directory / name
                raise DataError(f"{path}: expected the file whose digest is in {self.path}, got another in its place")

    def knows_digest(self, name: str) -> bool:
        """Tells whether a file's digest is recorded."""
        return name in self._digests

    def rekey(self, key: PrivateKey) -> None:
        """Writes the file with the MAC of another key; durable when this returns."""
        self._set_key(key)
        self.save()

    def save(self) -> None:
        """Writes all heads and digests; durable when this returns."""
        with self._lock:
            unsigned = HeadsFile(key=self._key, heads=self._heads, digests=self._digests)
            content = unsigned.model_copy(update={"mac": self.mac(PURPOSE, unsigned.content())}).model_dump_json()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, content.encode(), PRIVATE)
            self.existed = True

    def mac(self, purpose: str, content: bytes) -> str:
        """Computes a MAC, 64 hex digits, with a key that follows from the silo's.

        purpose: separates MACs of different uses.
        """
        return hmac.new(self._mac_key, purpose.encode() + b"\0" + content, "sha256").hexdigest()

    def has_mac(self, purpose: str, content: bytes, mac: str) -> bool:
        """Tells whether a MAC of the content was made with the silo's key."""
        return hmac.compare_digest(self.mac(purpose, content).encode(), mac.encode())

    def _set_key(self, key: PrivateKey) -> None:
        self._mac_key, self._key = derive_secret(key, LABEL), fingerprint(key.public_key())

    def _read(self) -> HeadsFile | None:
        found = load_heads_file(self.path)
        if found is not None and found.key != self._key:
            expected = f"expected heads made with this client's key ({self._key[:16]}), got some made with another"
            raise DataError(f"{self.path}: {expected} ({found.key[:16]}); after a new key: lpsfed ledger rekey")
        if found is not None and not self.has_mac(PURPOSE, found.content(), found.mac):
            raise DataError(f"{self.path}: expected the MAC that this client's key makes, got another: it was changed")
        return found


def load_heads_file(path: Path) -> HeadsFile | None:
    """Reads a file of heads, with its MAC unchecked.

    Returns None if there is none. Raises DataError for one that cannot be read.
    """
    try:
        with path.open("rb") as file:
            return HeadsFile.model_validate_json(file.read(MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise DataError(f"{path}: expected the heads of ledgers, got a file that holds none") from None


# kind of the entry by which an operator takes records as they are; see client_service/refresh/record_check.py
ADOPTED = "adopted"
MAC_FIELD = b'"mac":'  # in a line, where quotes within a text are escaped
LAG = 64  # entries without `durable_head` that a head may be behind


class HeadedLedger(Ledger):
    """Ledger whose length and last hash are also recorded in a file of heads.

    `name`: its path in the state directory of the heads.
    """

    def __init__(self, heads: LedgerHeads, name: str) -> None:
        """Opens a ledger.

        Raises DataError, and changes nothing, where the file is shorter than its head or another one.
        """
        self._heads, self._name = heads, name
        super().__init__(heads.state_directory / name)
        known = heads.head(name)
        if known is None and len(self):
            heads.adopted[name] = len(self)
        self._saved = None if known is None else known.count
        heads.set_head(name, LedgerHead(len(self), self.last_hash))

    def append(self, kind: str, *, durable: bool = True, durable_head: bool = False, **fields: Any) -> int:
        """Writes an entry as `Ledger` does; with `durable_head` the head is durable too."""
        if self._saved is None or not self._path.exists():  # or a crash would leave marked entries without a head
            self.save_head()
        number = super().append(kind, durable=durable, **fields)
        self._heads.set_head(self._name, LedgerHead(number, self.last_hash))
        if durable_head or self._saved is None or number - self._saved >= LAG:
            self.save_head()
        return number

    def save_head(self) -> None:
        """Writes the head, which then covers every entry; durable when this returns."""
        if not self._path.exists():
            self._path.touch()
            sync_path(self._path.parent)
        if self._saved == len(self):
            return
        self.sync()  # first: a head must not count entries that a crash can take away
        self._heads.save()
        self._saved = len(self)

    def _extra_fields(self, entry: Entry) -> Mapping[str, Any]:
        return {"mac": self._heads.mac(_purpose(self._name), hash_entry(entry).encode())}

    def _require_complete(self) -> None:
        end = find_end_fault(self._path, self._heads.head(self._name), self._heads.path)
        if fault := end or find_unsigned_entry(self._heads, self._name):
            raise DataError(fault)


def find_unsigned_entry(heads: LedgerHeads, name: str) -> str | None:
    """Describes the first entry beyond a ledger's head without a valid MAC; None without any."""
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


def find_end_fault(path: Path, head: LedgerHead | None, heads: Path) -> str | None:
    """Describes how a ledger's end contradicts its head; None if it agrees.

    `heads`: path of the file of heads, for the message.
    """
    lines = read_lines(path)
    if head is None:
        marked = any(MAC_FIELD in line for line in lines)
        return f"{path}: expected its head in {heads}, got none: it was removed" if marked else None
    count, last = next(iter(deque(enumerate(islice(lines, head.count), start=1), maxlen=1)), (0, b""))
    if count < head.count:
        return f"{path}: expected at least {head.count} entries, as {heads} records, got {count}: its end was cut off"
    if count and not has_hash(parse_entry(last), head.hash):
        return f"{path}, line {count}: expected the entry that {heads} records, got another: it was written anew"
    tail = [parse_entry(line) for line in islice(lines, LAG + 1)]
    beyond, broken = follow_chain(tail, head.hash)
    if broken is not None:
        return f"{path}, line {count + broken}: expected the chain to hold, got another hash"
    if beyond > LAG:
        return f"{path}: expected at most {LAG} entries beyond the {head.count} that {heads} records, got more"
    return None
