"""What releases of a silo's shards have spent <-> a file of charges, each durable before its release may leave."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client_service.boundary.ledger import Ledger
from client_service.privacy.accountant import Charge, epsilon
from shared.errors import DataError, SettingsError
from shared.new_files import PRIVATE, write_new

ACCOUNT, SECRET = "account.jsonl", "secret"
SECRET_BYTES = 32
OTHERS = 0o077  # permissions of everybody but the owner


@dataclass
class Spent:
    """One shard's charges so far, how often each occasion was charged, and the scalars that are drawn once and kept."""

    charges: Counter[Charge] = field(default_factory=Counter)
    occasions: Counter[str] = field(default_factory=Counter)
    kept: dict[str, float] = field(default_factory=dict)


class Account:
    """The account of one shard, over all runs and restarts. Those of other shards lie in the same file.

    The file is a hash chain like the ledger. Whoever puts back an older copy of it makes the silo forget what it spent.
    """

    def __init__(self, folder: Path, shard: str) -> None:
        """DataError for a file that is damaged, or gone while the silo's secret is still there."""
        path = folder / ACCOUNT
        if (folder / SECRET).exists() and not path.exists():
            raise DataError(f"{path}: expected the account beside {SECRET}, got none: what was spent is unknown")
        write_new(path, b"", PRIVATE)
        _settled(folder)
        self._ledger, self._shard, self.spent = Ledger(path), shard, Spent()
        self._ledger.verify()
        for entry in self._ledger.entries():
            if entry["shard"] == shard:
                self._take(entry)

    def epsilon(self, delta: float | None, more: Iterable[Charge] = ()) -> float:
        """Spent so far, with `more` spent too."""
        return epsilon([*self.spent.charges.elements(), *more], delta)

    def charge(self, occasion: str, charges: Mapping[str, Charge], kept: Mapping[str, float], **place: Any) -> None:
        """Durable when this returns. `kept`: scalars drawn once, by what they belong to; `place`: for readers alone."""
        parts = {name: [one.mechanism, one.noise_multiplier] for name, one in charges.items()}
        entry = {"shard": self._shard, "occasion": occasion, "charges": parts, "kept": dict(kept)}
        self._ledger.append("charge", **entry, **place)
        self._take(entry)

    def _take(self, entry: Mapping[str, Any]) -> None:
        self.spent.charges.update(Charge(*one) for one in entry["charges"].values())
        self.spent.occasions[entry["occasion"]] += 1
        self.spent.kept.update(entry["kept"])


def silo_secret(folder: Path) -> bytes:
    """32 random bytes that never leave, made where there are none. SettingsError for a file that others may read."""
    path = folder / SECRET
    if write_new(path, secrets.token_bytes(SECRET_BYTES), PRIVATE):
        _settled(folder)
    if (mode := path.stat().st_mode & 0o777) & OTHERS:
        raise SettingsError(f"{path}: expected a file for its owner alone (chmod 600), got permissions {mode:03o}")
    content = path.read_bytes()
    if len(content) != SECRET_BYTES:
        raise SettingsError(f"{path}: expected {SECRET_BYTES} random bytes, got {len(content)}")
    return content


def _settled(folder: Path) -> None:
    """A new file's name is durable once its folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
