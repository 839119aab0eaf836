"""Privacy account of a silo: charges of its releases on disk, and their epsilon.

Each charge is durable before its release leaves.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field

from client_service.boundary.ledger import Entry, has_hash, parse_entry, read_lines
from client_service.boundary.ledger_heads import HeadedLedger, LedgerHeads
from client_service.privacy.settings import SCALARS, TENSORS, Mechanism, PrivacySettings
from shared.errors import DataError, SettingsError
from shared.files import PRIVATE, sync_path, write_new
from shared.message import Message


class PrivacyOut(Message):
    """Epsilon spent by the releases of this shard over all runs, and the silo's budget."""

    mechanism: Literal["gaussian", "laplace"] = Field(description="the noise")
    epsilon: float = Field(ge=0, description="spent so far")
    delta: float | None = Field(None, ge=0, le=1, description="at which that epsilon holds; none with laplace: it is 0")
    budget: float = Field(gt=0, description="the epsilon that the silo allows")
    exhausted: bool = Field(False, description="another update does not fit into the budget: none leaves")


class Charge(NamedTuple):
    """One release of one part: its noise's deviation or scale over the part's sensitivity."""

    mechanism: Mechanism
    noise_multiplier: float


def epsilon(charges: Iterable[Charge], delta: float | None) -> float:
    """Computes the epsilon that releases of one shard spend together at delta.

    Each release may depend on the results of earlier ones. Gaussian: releases of multipliers z_i are together as one of
    multiplier 1 / sqrt(sum 1 / z_i^2), because a sum of independent Gaussian privacy losses is one again (Dong, Roth,
    Su 2022, arXiv 1905.02383); its epsilon is exact (Balle, Wang 2018, arXiv 1805.06530). Laplace: the sum of 1 /
    z_i, for any delta. Both: the sum of the two. Infinite for Gaussian releases without a delta.
    """
    known = list(charges)
    pure = math.fsum(1.0 / z for mechanism, z in known if mechanism == "laplace")
    precision = math.fsum(z**-2 for mechanism, z in known if mechanism == "gaussian")
    return pure + (_gaussian(precision**-0.5, delta or 0.0) if precision else 0.0)


def _gaussian(multiplier: float, delta: float) -> float:
    from dp_accounting import get_epsilon_gaussian  # it takes a second to load, and most silos do not use it

    return float(get_epsilon_gaussian(multiplier, delta))


def planned_epsilon(settings: PrivacySettings, scalars: Iterable[str], rounds: int, *, anchors: int = 1) -> float:
    """Computes the epsilon of a whole run.

    Tensors and scalars are released in each round, a steady scalar once for each anchor.
    """
    times = {TENSORS: rounds} | {name: anchors if SCALARS[name].steady else rounds for name in set(scalars)}
    charges = [Charge(*settings.noise(part)) for part, count in times.items() for _ in range(count)]
    return epsilon(charges, settings.delta)


FOLDER = "privacy"
ACCOUNT, SECRET = f"{FOLDER}/account.jsonl", f"{FOLDER}/secret"  # in the state directory
SECRET_BYTES = 32
LEDGER_FIELD = "privacy"  # field of a release's ledger entry that describes its charge
ROUNDING = 1e-9  # of epsilon, relative
OTHERS = 0o077  # permissions of everybody but the owner


@dataclass
class AccountState:
    """Charges so far, occasions that were charged, and scalars drawn once and kept."""

    charges: Counter[Charge] = field(default_factory=Counter)
    occasions: Counter[str] = field(default_factory=Counter)
    kept: dict[str, float] = field(default_factory=dict)


class Account:
    """Account of a silo over all runs, restarts and changes of its shard.

    Entries name the shard. The file is a ledger with a signed head, so that an older copy of the file is refused.
    """

    def __init__(self, heads: LedgerHeads, shard: str, account: str = ACCOUNT, secret_file: str = SECRET) -> None:
        """Opens the account.

        Raises DataError for a file that is damaged, shorter than its head, or missing beside the silo's secret.
        """
        path, secret = heads.state_directory / account, heads.state_directory / secret_file
        if secret.exists() and not path.exists():
            raise DataError(f"{path}: expected the account beside {secret.name}, got none: the spent budget is unknown")
        self._ledger, self._shard, self.spent = HeadedLedger(heads, account), shard, AccountState()
        if write_new(path, b"", PRIVATE):
            sync_path(path.parent)
        self._ledger.verify()
        for entry in self._ledger.entries():
            self._apply(entry)

    @property
    def end(self) -> dict[str, Any]:
        """Number of entries and the hash of the last one.

        With both, a later check can tell whether the entry is still there.
        """
        return {"entries": len(self._ledger), "hash": self._ledger.last_hash}

    def epsilon(self, delta: float | None, more: Iterable[Charge] = ()) -> float:
        """Computes the epsilon spent so far, with further charges."""
        return epsilon([*self.spent.charges.elements(), *more], delta)

    def switch_shard(self, shard: str) -> None:
        """Switches to another shard, which later entries name by its digest."""
        self._shard = shard

    def charge(self, occasion: str, charges: Mapping[str, Charge], kept: Mapping[str, float], **place: Any) -> None:
        """Appends a charge; it is durable when this returns.

        `kept`: scalars drawn once, by what they follow from. `place`: further fields for readers of the file.
        """
        parts = {name: [one.mechanism, one.noise_multiplier] for name, one in charges.items()}
        entry: dict[str, Any] = {"shard": self._shard, "occasion": occasion, "charges": parts, "kept": dict(kept)}
        self._ledger.append("charge", durable_head=True, **entry, **place)
        self._apply(entry)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        self.spent.charges.update(Charge(*one) for one in entry["charges"].values())
        self.spent.occasions[entry["occasion"]] += 1
        self.spent.kept.update(entry["kept"])


def silo_secret(heads: LedgerHeads, name: str = SECRET) -> bytes:
    """Reads the silo's secret of 32 random bytes, or makes it at the first start.

    It never leaves. Raises DataError if it is gone or has changed, SettingsError if others may read the file.
    """
    path = heads.state_directory / name
    if not path.exists() and heads.knows_digest(name):
        raise DataError(f"{path}: expected the secret that {heads.path} records, got none: restore it")
    if write_new(path, secrets.token_bytes(SECRET_BYTES), PRIVATE):
        sync_path(path.parent)
    if (mode := path.stat().st_mode & 0o777) & OTHERS:
        raise SettingsError(f"{path}: expected a file for its owner alone (chmod 600), got permissions {mode:03o}")
    content = path.read_bytes()
    if len(content) != SECRET_BYTES:
        raise SettingsError(f"{path}: expected {SECRET_BYTES} random bytes, got {len(content)}")
    heads.require_digest(name, content)
    return content


def find_shortfall(ledger: Path, account: Path, field: str = LEDGER_FIELD) -> str | None:
    """Describes which charge the account lacks for the last release in the ledger.

    None if it lacks nothing. field: the ledger's field that describes the charge of a release.
    """
    name = f'"{field}":'.encode()
    last = [parse_entry(line) for line in deque((line for line in read_lines(ledger) if name in line), maxlen=1)]
    if not last or field not in last[0]:
        return None
    release, charges = last[0][field], [parse_entry(line) for line in read_lines(account)]
    expected = f"{account}: expected the charge of the last release in {ledger}"
    end = release.get("account")
    if end is not None:
        number = end["entries"]
        held = 0 < number <= len(charges) and has_hash(charges[number - 1], end["hash"])
        return None if held else f"{expected}, its entry {number}, got {len(charges)} entries without it"
    most = max(_spent_epsilons(charges, release.get("delta")), default=0.0)
    short = not charges or most < release["epsilon"] * (1 - ROUNDING)
    return f"{expected}, epsilon {release['epsilon']:.6g}, got {most:.6g}" if short else None


def _spent_epsilons(charges: Iterable[Entry], delta: float | None) -> Iterator[float]:
    """Computes the epsilon of each shard in the file."""
    by_shard: defaultdict[str, list[Charge]] = defaultdict(list)
    for entry in charges:
        by_shard[str(entry.get("shard"))] += [Charge(*one) for one in entry.get("charges", {}).values()]
    return (epsilon(found, delta) for found in by_shard.values())
