"""How far each of a silo's ledgers reaches, in a file of its own under the silo's key: nothing can be cut off unseen.

A hash chain shows what was changed inside of it, and not that its end is missing, nor that all of it was written anew.
So the number of entries and the hash of the last one also stand here, for all ledgers of a state directory together,
with an HMAC. Its key is derived from the key by which the client signs its requests. That key is the one secret that
every silo has, that lies outside of the state wherever the silo is run with care, and that is kept: a secret of its own
would be another file to place, to back up and to lose. HKDF with a label gives a key that nothing signed tells of.

The file is replaced as a whole and is durable before anything follows from it. It may be behind a ledger by a few
entries (see `HeadedLedger`), and never ahead of one, because an entry is durable before it is counted here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from client_service.boundary.ledger import GENESIS
from shared.errors import DataError
from shared.message import Message
from shared.new_files import PRIVATE, replace_file
from shared.protocol.signing.keys import PrivateKey, derive_secret, fingerprint

NAME = "ledger-heads.json"
LABEL = b"lpsfed ledger heads 1"  # of the MAC's key: no other use of the silo's key has it
PURPOSE = "heads"
MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class LedgerHead:
    """The first `count` entries of a ledger, of which the last has this hash."""

    count: Annotated[int, Field(ge=0)] = 0
    hash: str = GENESIS


class HeadsFile(Message):
    """The file's content. key: fingerprint of the public half; digests: of other files of the state, by their names."""

    key: str
    heads: dict[str, LedgerHead] = Field(default_factory=dict)
    digests: dict[str, str] = Field(default_factory=dict)
    mac: str = ""

    def content(self) -> bytes:
        """What is under the MAC."""
        return json.dumps(self.model_dump(exclude={"mac"}), sort_keys=True, separators=(",", ":")).encode()


class LedgerHeads:
    """The heads of one state directory. Threads may share it."""

    def __init__(self, state_directory: Path, key: PrivateKey, directory: Path | None = None) -> None:
        """directory: where the file lies; by default in the state directory.

        DataError for a file that is none, or whose MAC was not made with this key.
        """
        self.state_directory, self.path = state_directory, (directory or state_directory) / NAME
        self._take(key)
        self._lock = threading.Lock()
        found = self._read()
        self.found = found is not None
        self._heads = dict(found.heads) if found else {}
        self._digests = dict(found.digests) if found else {}
        self.adopted: dict[str, int] = {}  # entries of ledgers that were there before their heads, for whoever tells it

    def __iter__(self) -> Iterator[str]:
        """The names of the ledgers: their paths in the state directory."""
        return iter(sorted(self._heads))

    def head(self, name: str) -> LedgerHead | None:
        """How far this ledger reaches at least; None where it was never told."""
        return self._heads.get(name)

    def note(self, name: str, head: LedgerHead) -> None:
        """A ledger has these entries, durably. It is on record with the next `save`."""
        with self._lock:
            self._heads[name] = head

    def require_digest(self, name: str, content: bytes) -> None:
        """Of a file that never changes: noted when it is first seen. DataError where it is another one by now."""
        digest = hashlib.sha256(content).hexdigest()
        with self._lock:
            if self._digests.setdefault(name, digest) != digest:
                path = self.state_directory / name
                raise DataError(f"{path}: expected the file that {self.path} tells of, got another in its place")

    def knows_digest(self, name: str) -> bool:
        """Has this file been seen before?"""
        return name in self._digests

    def rekey(self, key: PrivateKey) -> None:
        """All of it is under this key when this returns."""
        self._take(key)
        self.save()

    def save(self) -> None:
        """All that was noted is durable when this returns."""
        with self._lock:
            said = HeadsFile(key=self._key, heads=self._heads, digests=self._digests)
            content = said.model_copy(update={"mac": self.mac(PURPOSE, said.content())}).model_dump_json()
            self.path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self.path, content.encode(), PRIVATE)
            self.found = True

    def mac(self, purpose: str, content: bytes) -> str:
        """64 hex digits that only the holder of the silo's key can write beside this content for this purpose."""
        return hmac.new(self._mac_key, purpose.encode() + b"\0" + content, "sha256").hexdigest()

    def has_mac(self, purpose: str, content: bytes, mac: str) -> bool:
        """Was this written beside the content by a holder of the silo's key?"""
        return hmac.compare_digest(self.mac(purpose, content).encode(), mac.encode())

    def _take(self, key: PrivateKey) -> None:
        self._mac_key, self._key = derive_secret(key, LABEL), fingerprint(key.public_key())

    def _read(self) -> HeadsFile | None:
        said = read_heads_file(self.path)
        if said is not None and said.key != self._key:
            expected = f"expected heads made with this client's key ({self._key[:16]}), got some made with another"
            raise DataError(f"{self.path}: {expected} ({said.key[:16]}); after a new key: lpsfed ledger rekey")
        if said is not None and not self.has_mac(PURPOSE, said.content(), said.mac):
            raise DataError(f"{self.path}: expected the MAC that this client's key makes, got another: it was changed")
        return said


def read_heads_file(path: Path) -> HeadsFile | None:
    """The file's content, believed by nobody yet; None where there is none. DataError for one that cannot be read."""
    try:
        with path.open("rb") as file:
            return HeadsFile.model_validate_json(file.read(MOST_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise DataError(f"{path}: expected the heads of ledgers, got a file that holds none") from None
