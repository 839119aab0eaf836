"""Runs that make sums: which of them a request uses, and how it is completed."""

from __future__ import annotations

from aggregator_service.rounds.run import Run, decode_run
from aggregator_service.rounds.secure_run import BasisPledge
from aggregator_service.storage.database import Database
from aggregator_service.storage.run_store import run_documents
from shared.errors import ProtocolError
from shared.method.declaration import TRAINING, Part
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunIn
from shared.strategies.strategy import Strategy
from shared.sums import SUMS, find_sum, is_basis, method_of_part, replaces_basis
from shared.sums.common_items import ITEMS
from shared.sums.content import CONTENT

BROKEN_OFF = ("failed", "cancelled")


def finished_basis_runs(database: Database) -> list[Run]:
    """Lists the finished runs whose sums training runs can use, oldest first."""
    return [run for run in _finished_sum_runs(database) if is_basis(run.request.method.basis)]


def newest_list(database: Database) -> Run | None:
    """Finds the newest run that summed the list of common items.

    None if there is none.
    """
    return newest_run_of_part(database, ITEMS)


def newest_run_of_part(database: Database, part: Part) -> Run | None:
    """Finds the newest finished run of a part that sums; None if there is none."""
    found = [run for run in _finished_sum_runs(database) if run.request.part == part]
    return found[-1] if found else None


def _finished_sum_runs(database: Database) -> list[Run]:
    return [run for run in _sum_runs(database) if run.phase == "finished"]


def _sum_runs(database: Database) -> list[Run]:
    runs = map(decode_run, run_documents(database))
    return [run for run in runs if run.request.part != TRAINING]


def choose_sum(request: RunIn, whole: MethodSettings, declared: MethodSettings) -> RunIn:
    """Completes a request with the sum of its part.

    A run that sums, and names no sum, makes the one that the federation declares for its part. whole: the request's
    settings, completed. Raises ProtocolError for a run that is to sum where no sum of its part is chosen.
    """
    method = method_of_part(whole, request.part)
    if request.part != TRAINING and method.basis.kind == "off" and "basis" not in request.method.model_fields_set:
        own = method_of_part(declared, request.part)
        method = method.model_copy(update={"basis": own.basis, "catalogue": own.catalogue})
    if request.part != TRAINING and method.basis.kind == "off":
        known = " or ".join(repr(one.name) for one in SUMS.values() if one.part == request.part)
        raise ProtocolError(f"method.basis.kind: expected {known or 'a sum'} with part = {request.part}, got 'off'")
    return request.model_copy(update={"method": method})


def require_training(declared: Strategy, request: RunIn) -> None:
    """Raises ProtocolError for a training run of a federation that only shares sums.

    declared: its strategy.
    """
    if declared.sums_alone and request.part == TRAINING:
        words = "expected a run that sums, such as basis, because this federation shares sums alone and trains nothing"
        raise ProtocolError(f"part: {words}, got {request.part}")


def resolve_request(database: Database, request: RunIn) -> RunIn:
    """Completes a request with the values that follow from its part.

    A run that sums gets its number of rounds and the run over whose sums it counts, a training run its basis run, and
    either one the content sums that models are made with. Raises ProtocolError for a training run with a basis where
    no basis run, or not the named one, has finished, and for a sum over a sum that does not exist.
    """
    basis = request.method.basis
    found = newest_run_of_part(database, CONTENT) if request.part == TRAINING or is_basis(basis) else None
    request = request.model_copy(update={"content": None if found is None else found.name})
    if request.part != TRAINING:
        over = _find_over(database, request)
        rounds = find_sum(request.method).rounds(basis)
        return request.model_copy(update={"rounds": rounds, "basis": None, "over": over})
    if basis.kind == "off":
        return request.model_copy(update={"basis": None, "over": None})
    used = _require_basis(finished_basis_runs(database), request)
    return request.model_copy(update={"basis": used.name, "over": used.request.over})


def _find_over(database: Database, request: RunIn) -> str | None:
    """Finds the run over whose sums the requested sum counts.

    None for a sum without one.
    """
    part = find_sum(request.method).base_part(request.method)
    if part is None:
        return None
    found = newest_run_of_part(database, part)
    if found is None:
        raise ProtocolError(f"over: expected a finished run of the part {part!r} first, got none")
    if request.over not in (None, found.name):
        raise ProtocolError(f"over: expected {found.name}, the newest run of the part {part!r}, got {request.over}")
    return found.name


def _require_basis(finished: list[Run], request: RunIn) -> Run:
    alike = (run for run in finished if run.request.items == request.items)
    fitting = [run for run in alike if _is_basis_for(request.method, run.request.method)]
    if not fitting:
        words = f"expected a finished basis run with basis.kind = {request.method.basis.kind!r} before a training run"
        raise ProtocolError(f"basis: {words}, got none: start a run with part = basis first")
    if request.basis not in (None, fitting[-1].name):
        raise ProtocolError(f"basis: expected {fitting[-1].name}, the newest that fits the method, got {request.basis}")
    return fitting[-1]


def _is_basis_for(method: MethodSettings, summed: MethodSettings) -> bool:
    return (method.basis, method.catalogue) == (summed.basis, summed.catalogue)


def new_basis_pledge(database: Database, request: RunIn) -> BasisPledge | None:
    """Returns the pledge of a run that sums, given all earlier sums.

    None for a noised sum. Earlier sums count that clients were asked to help with, even where they failed. Sums of
    all parts count together: an item missing in a sum of three silos, and counted in one of four, belongs to the
    fourth silo. A silo that added zeros is not in the sums of its part.
    """
    if request.method.basis.epsilon is not None:
        return None
    pledges = [(run.request.part, run.pledge.basis) for run in _sum_runs(database) if run.pledge is not None]
    earlier = tuple(stamps for _, one in pledges if one is not None for stamps in one.own)
    alike = [one for part, one in pledges if one is not None and part == request.part]
    adding = tuple(stamps for one in alike for stamps in one.adding)
    return BasisPledge(least=request.method.basis.least_silos, earlier=earlier, earlier_adding=adding)


def find_usable_run(database: Database) -> Run | None:
    """Finds the newest finished run that a silo can make its model from.

    None if there is none. Its sums must still be stored: a training run that uses them, or the run that made them.
    """
    kept = kept_sums(database)
    runs = [decode_run(document) for document in run_documents(database)]
    has_basis = any(is_basis(run.request.method.basis) for run in runs)
    finished = (run for run in reversed(runs) if run.phase == "finished")
    return next((run for run in finished if _has_usable_sums(run, kept, has_basis=has_basis)), None)


def _has_usable_sums(run: Run, kept: frozenset[str], *, has_basis: bool) -> bool:
    request, basis = run.request, run.request.method.basis
    if request.part == TRAINING:
        return request.basis in kept or request.content in kept
    makes = is_basis(basis) or request.makes_models or (replaces_basis(basis) and not has_basis)
    return makes and run.name in kept


def kept_sums(database: Database) -> frozenset[str]:
    """Lists the runs whose sums are kept beyond the retention time.

    They are the newest of each part, and the runs over whose sums these count.
    """
    newest = {find_sum(run.request.method).part: run for run in _finished_sum_runs(database)}
    over = {name for run in newest.values() for name in (run.request.items, run.request.over) if name is not None}
    return frozenset(run.name for run in newest.values()) | over


def leaves_no_model(run: Run) -> bool:
    """Tells whether this newest run gives silos no model.

    It failed or was cancelled, or its sum is one that no training run uses, such as a list of items.
    """
    summed = run.request.part != TRAINING and not is_basis(run.request.method.basis)
    return run.phase in BROKEN_OFF or (run.phase == "finished" and summed)
