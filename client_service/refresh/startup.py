"""Opens a silo's records and stored model when its client starts."""

from __future__ import annotations

from dataclasses import dataclass

from client_service.boundary.anchors import NAME as ANCHORS
from client_service.boundary.ledger import LEDGER
from client_service.boundary.ledger_heads import HeadedLedger, LedgerHeads
from client_service.event_log.log_store import LogStore
from client_service.federation.best_model import load_model_or_none
from client_service.model_store.model_files import load_head
from client_service.model_store.model_server import FrozenModel
from client_service.privacy.accounting import ACCOUNT, find_shortfall
from client_service.privacy.basis_guard import BasisGuard
from client_service.privacy.guard import Guard
from client_service.refresh.cleanup import delete_other_models, delete_outdated_files
from client_service.refresh.rebuild import ModelRenewal
from client_service.runtime.interruption import Interrupted
from client_service.runtime.logs import LOGGER, describe_failure, describe_place
from client_service.secure_rounds.round_memory import NAME as ROUNDS
from client_service.settings import ClientSettings
from client_service.tasks.task import TaskShard
from shared.errors import DataError, SettingsError
from shared.protocol.signing.keys import PrivateKey
from shared.sums import list_sums


@dataclass(frozen=True)
class OpenRecords:
    """Records of a running client.

    ledger: of all calls. anchors: what rho was compared with. rounds: secure rounds. guard: of noised updates, else
    None. basis_guard: of noised sums of the common basis, else None.
    """

    ledger: HeadedLedger
    anchors: HeadedLedger
    rounds: HeadedLedger
    guard: Guard | None
    basis_guard: BasisGuard | None

    def save_heads(self) -> None:
        """Writes the ledger's last entry into its head at a clean end.

        The heads of the other ledgers always have it.
        """
        try:
            self.ledger.save_head()
        except OSError as error:
            LOGGER.error("ledger_head_not_saved", reason=error.strerror)


def open_records(settings: ClientSettings, key: PrivateKey, shard: TaskShard) -> OpenRecords:
    """Opens the records of a client, and adopts records of earlier versions."""
    state = settings.state_directory
    heads = LedgerHeads(state, key, settings.records_directory)
    ledger, anchors, rounds = (HeadedLedger(heads, name) for name in (LEDGER, ANCHORS, ROUNDS))
    guard = None
    if settings.privacy.is_on:
        if shortfall := find_shortfall(state / LEDGER, state / ACCOUNT):
            raise DataError(shortfall)
        guard = Guard(settings.privacy, heads, shard.digest, settings.declaration())
    basis_guard, policy = None, settings.policy
    if any(one.epsilon is not None for one in list_sums(settings.method).values()):
        basis_guard = BasisGuard(heads, policy.basis_budget, policy.basis_delta)
    for name, entries in heads.adopted.items():
        LOGGER.warning("ledger_adopted", file=name, entries=entries, heads=str(heads.path))
    try:
        heads.save()
    except OSError as error:
        raise SettingsError(f"{heads.path}: expected a writable path ({error.strerror})") from None
    return OpenRecords(ledger, anchors, rounds, guard, basis_guard)


def load_stored_model(renewal: ModelRenewal, store: LogStore | None) -> FrozenModel | None:
    """Loads the kept model, or renews it for a changed shard. Slow.

    A damaged model, too little memory or a full disk do not stop the client: the result is None, and popular items
    are served, flagged, until there is a new model. A refresh does the rest.
    """
    shard, settings = renewal.shard, renewal.settings
    try:
        served = load_model_or_none(
            renewal.task,
            shard,
            settings.models_directory,
            renewal.device,
            fit_everything=settings.fit_everything,
        ) or _renew(renewal)
        if store is not None:
            delete_outdated_files(settings, store, shard.digest, erased=store.erasures.has_open())
            store.erasures.complete()
    except Interrupted:
        raise
    except Exception as error:
        LOGGER.error("kept_model_not_loaded", reason=describe_failure(error), at=describe_place(error))
        return None
    return served


def _renew(renewal: ModelRenewal) -> FrozenModel | None:
    """Renews the kept model for a changed shard, and deletes the other models.

    Another process that changed the shard may have erased somebody, so nothing of the old content stays. A change of
    the item texts alone erases nobody.
    """
    folder, digest = renewal.settings.models_directory, renewal.shard.digest
    head = load_head(folder)
    if head is None or renewal.is_current(head):
        return None
    renewed = renewal.renew(erased=head.shard != digest)
    served = None if renewed is None else renewal.keep(renewed)
    delete_other_models(folder, digest)
    return served
