"""Basis runs: which one a training run uses, and what the operator's request for either becomes."""

from __future__ import annotations

from aggregator_service.rounds.run import Run, decode_run
from aggregator_service.rounds.secure_run import BasisPledge
from aggregator_service.storage.database import Database
from aggregator_service.storage.run_store import run_documents
from shared.errors import ProtocolError
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunIn
from shared.sums import SUMS, find_sum


def finished_basis_runs(database: Database) -> list[Run]:
    """Oldest first."""
    return [run for run in _basis_runs(database) if run.phase == "finished"]


def _basis_runs(database: Database) -> list[Run]:
    runs = map(decode_run, run_documents(database))
    return [run for run in runs if run.request.part == "basis"]


def require_chosen_sum(request: RunIn) -> None:
    """ProtocolError for a run that is to sum, and whose method chooses no sum."""
    if request.part == "basis" and request.method.basis.kind == "off":
        known = " or ".join(map(repr, SUMS))
        raise ProtocolError(f"method.basis.kind: expected {known} with part = basis, got 'off'")


def settle_request(database: Database, request: RunIn) -> RunIn:
    """The request with what follows from its part: of a basis run its rounds, of a training run its basis run.

    ProtocolError for a training run with a basis where none has finished, or not the named one.
    """
    basis = request.method.basis
    if request.part == "basis":
        return request.model_copy(update={"rounds": find_sum(request.method).rounds(basis), "basis": None})
    if basis.kind == "off":
        return request.model_copy(update={"basis": None})
    return request.model_copy(update={"basis": _require_basis(finished_basis_runs(database), request)})


def _require_basis(finished: list[Run], request: RunIn) -> str:
    fitting = [run.name for run in finished if _is_basis_for(request.method, run.request.method)]
    if not fitting:
        words = f"expected a finished basis run with basis.kind = {request.method.basis.kind!r} before a training run"
        raise ProtocolError(f"basis: {words}, got none: start a run with part = basis first")
    if request.basis not in (None, *fitting[-1:]):
        raise ProtocolError(f"basis: expected {fitting[-1]}, the newest that fits the method, got {request.basis}")
    return fitting[-1]


def _is_basis_for(method: MethodSettings, summed: MethodSettings) -> bool:
    return (method.basis, method.catalogue) == (summed.basis, summed.catalogue)


def new_basis_pledge(database: Database, request: RunIn) -> BasisPledge | None:
    """What a basis run is held on beside the sums that clients have been asked to help with in earlier ones, which
    need not have ended well. None where the sum is noised."""
    if request.method.basis.epsilon is not None:
        return None
    pledges = [run.pledge.basis for run in _basis_runs(database) if run.pledge is not None]
    earlier = tuple(stamps for one in pledges if one is not None for stamps in one.own)
    return BasisPledge(least=request.method.basis.least_silos, earlier=earlier)


def kept_basis(database: Database) -> str | None:
    """The run whose sums stay available, whatever the retention time: the newest; None where there is none."""
    return next((run.name for run in reversed(finished_basis_runs(database))), None)
