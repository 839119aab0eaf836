"""What a silo must never forget, opened together: nothing is changed unless all of it is whole."""

from __future__ import annotations

from dataclasses import dataclass

from client_service.anchors import NAME as ANCHORS
from client_service.boundary.headed_ledger import HeadedLedger
from client_service.boundary.ledger import LEDGER
from client_service.boundary.ledger_heads import LedgerHeads
from client_service.logs import LOGGER
from client_service.privacy.account import ACCOUNT, find_shortfall
from client_service.privacy.basis_guard import BasisGuard
from client_service.privacy.guard import Guard
from client_service.secure.memory import NAME as ROUNDS
from client_service.settings import ClientSettings
from client_service.tasks.task import TaskShard
from shared.errors import DataError, SettingsError
from shared.protocol.signing.keys import PrivateKey


@dataclass(frozen=True)
class OpenRecords:
    """ledger: of all calls. anchors: what rho was compared with. rounds: secure ones. guard: where there is noise;
    basis_guard: where there is some in the sums of the common basis."""

    ledger: HeadedLedger
    anchors: HeadedLedger
    rounds: HeadedLedger
    guard: Guard | None
    basis_guard: BasisGuard | None

    def seal(self) -> None:
        """At a clean end the head of the ledger tells of its last entry; of the others it always does."""
        try:
            self.ledger.seal()
        except OSError as error:
            LOGGER.error("ledger_not_sealed", reason=error.strerror)


def open_records(settings: ClientSettings, key: PrivateKey, shard: TaskShard) -> OpenRecords:
    """DataError where one was cut, replaced, or put back from an older copy. Those of an older version are adopted."""
    state = settings.state_directory
    heads = LedgerHeads(state, key, settings.records_directory)
    ledger, anchors, rounds = (HeadedLedger(heads, name) for name in (LEDGER, ANCHORS, ROUNDS))
    guard = None
    if settings.privacy.on:
        if shortfall := find_shortfall(state / LEDGER, state / ACCOUNT):
            raise DataError(shortfall)
        guard = Guard(settings.privacy, heads, shard.digest, settings.declaration())
    basis_guard, policy = None, settings.policy
    if settings.method.basis.epsilon is not None:
        basis_guard = BasisGuard(heads, policy.basis_budget, policy.basis_delta)
    for name, entries in heads.adopted.items():
        LOGGER.warning("ledger_adopted", file=name, entries=entries, heads=str(heads.path))
    try:
        heads.save()
    except OSError as error:
        raise SettingsError(f"{heads.path}: expected a place that can be written ({error.strerror})") from None
    return OpenRecords(ledger, anchors, rounds, guard, basis_guard)
