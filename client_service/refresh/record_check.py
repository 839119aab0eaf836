"""Verifies and repairs the records of a stopped client."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from client_service.boundary.ledger import LEDGER, Ledger, follow_chain, parse_entry, read_lines
from client_service.boundary.ledger_heads import (
    ADOPTED,
    NAME,
    HeadedLedger,
    HeadsFile,
    LedgerHead,
    LedgerHeads,
    find_end_fault,
    find_unsigned_entry,
    load_heads_file,
)
from client_service.privacy.accounting import ACCOUNT, SECRET, find_shortfall
from client_service.privacy.basis_guard import SECRET as BASIS_SECRET
from client_service.privacy.basis_guard import find_basis_shortfall
from shared.errors import DataError, SettingsError
from shared.files import lock_directory
from shared.protocol.signing.keys import PrivateKey, fingerprint

LONGEST_REASON = 200  # characters of an operator's words
NOTHING = HeadsFile(key="")
SECRETS = (SECRET, BASIS_SECRET)  # of noise


@dataclass(frozen=True)
class RecordsReport:
    """Result of a verification of records.

    entries: of each ledger's file. faults: one line each. authentic: the MAC of the heads was checked, and holds.
    """

    entries: dict[str, int]
    faults: tuple[str, ...]
    authentic: bool


def verify_records(state_directory: Path, key: PrivateKey | None, directory: Path | None = None) -> RecordsReport:
    """Reads all records of a stopped client, or of a copy, and changes nothing.

    key: the client's private key; without it the heads are not authenticated. directory: where the heads are, by
    default the state directory. Raises SettingsError if there is no such directory.
    """
    _require_directory(state_directory)
    file = (directory or state_directory) / NAME
    faults: list[str | None] = []
    try:
        said = load_heads_file(file)
        heads = None if key is None else LedgerHeads(state_directory, key, directory)
    except DataError as error:
        said, faults = None, [str(error)]
    else:
        faults += [
            _find_ledger_fault(state_directory / name, said, name, file)
            for name in _list_ledgers(state_directory, said)
        ]
        faults += [] if heads is None else [find_unsigned_entry(heads, name) for name in heads]
        faults += [_find_replaced_secret(state_directory, name, said, file) for name in SECRETS]
    faults += _find_shortfalls(state_directory)
    entries = {
        name: sum(1 for _ in read_lines(state_directory / name)) for name in _list_ledgers(state_directory, said)
    }
    return RecordsReport(entries, tuple(filter(None, faults)), authentic=said is not None and key is not None)


def rekey_records(state_directory: Path, old: PrivateKey, new: PrivateKey, directory: Path | None = None) -> Path:
    """Authenticates the heads with a new key instead of the old one; returns their file.

    A second call changes nothing. Raises DataError if the heads were made with neither key or are missing,
    SettingsError while the client runs.
    """
    _require_directory(state_directory)
    with lock_directory(state_directory):
        said = load_heads_file((directory or state_directory) / NAME)
        renewed = said is not None and said.key == fingerprint(new.public_key())
        heads = LedgerHeads(state_directory, new if renewed else old, directory)
        if not heads.existed:
            raise DataError(f"{heads.path}: expected the heads of ledgers, got none")
        for name in [*heads]:  # the heads come to the last entries, which are under the old key
            HeadedLedger(heads, name)
        heads.rekey(new)
    return heads.path


def adopt_records(
    state_directory: Path, key: PrivateKey, reason: str, *, give_up: str | None = None, directory: Path | None = None
) -> Path:
    """Accepts the records as they are, and notes that and the reason in the ledger.

    Returns the file of the heads; the former heads stay beside it. give_up: nonce of a lost entry that the aggregator
    has.

    Raises DataError, and changes nothing, where the account lacks a release of the ledger, because that spending
    would be forgotten. Raises SettingsError while the client runs.
    """
    _require_directory(state_directory)
    if not 0 < len(reason) <= LONGEST_REASON:
        raise SettingsError(f"reason: expected 1 to {LONGEST_REASON} characters, got {len(reason)}")
    with lock_directory(state_directory):
        if shortfall := next(filter(None, _find_shortfalls(state_directory)), None):
            raise DataError(f"{shortfall}; restore the newest account; nothing was changed")
        file = (directory or state_directory) / NAME
        if file.exists():
            os.replace(file, file.with_name(f"{NAME}.replaced"))
        heads = LedgerHeads(state_directory, key, directory)
        for name in _list_ledgers(state_directory, None):
            ledger = Ledger(state_directory / name)
            heads.set_head(name, LedgerHead(len(ledger), ledger.last_hash))
        for name in SECRETS:
            if (secret := state_directory / name).exists():
                heads.require_digest(name, secret.read_bytes())
        heads.save()
        ledger = HeadedLedger(heads, LEDGER)
        if give_up is None:
            ledger.append(ADOPTED, durable_head=True, reason=reason)
        else:
            ledger.append(ADOPTED, durable_head=True, reason=reason, gave_up=give_up)
    return heads.path


def _require_directory(state_directory: Path) -> None:
    if not state_directory.is_dir():
        raise SettingsError(f"{state_directory}: expected a client's state directory, got none")


def _list_ledgers(state_directory: Path, said: HeadsFile | None) -> Iterable[str]:
    """Lists all ledgers that exist or should exist."""
    there = {str(path.relative_to(state_directory)) for path in state_directory.rglob("*.jsonl")}
    return sorted(there | set((said or NOTHING).heads) | {LEDGER})


def _find_ledger_fault(path: Path, said: HeadsFile | None, name: str, file: Path) -> str | None:
    """Returns the first fault of a ledger, of its end or its chain."""
    if fault := find_end_fault(path, (said or NOTHING).heads.get(name), file):
        return fault
    count, broken = follow_chain(map(parse_entry, read_lines(path)))
    return None if broken is None else f"{path}, line {count}: expected the chain to hold, got another hash"


def _find_shortfalls(state_directory: Path) -> list[str | None]:
    """Lists missing charges in the accounts of updates and of noised sums."""
    return [find_shortfall(state_directory / LEDGER, state_directory / ACCOUNT), find_basis_shortfall(state_directory)]


def _find_replaced_secret(state_directory: Path, name: str, said: HeadsFile | None, file: Path) -> str | None:
    path, digest = state_directory / name, (said or NOTHING).digests.get(name)
    if digest is None:
        return None
    if not path.exists():
        return f"{path}: expected the secret whose digest is in {file}, got none"
    same = hashlib.sha256(path.read_bytes()).hexdigest() == digest
    return None if same else f"{path}: expected the file whose digest is in {file}, got another in its place"
