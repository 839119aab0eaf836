"""Choice of a run's sum by the list of common items."""

from __future__ import annotations

from aggregator_service.aggregation.computation import load_state
from aggregator_service.rounds.basis_runs import finished_basis_runs, newest_list
from aggregator_service.rounds.run import Run
from aggregator_service.storage.locations import Archive
from shared.errors import ProtocolError
from shared.method.declaration import TRAINING
from shared.method.settings import BasisSettings, MethodSettings
from shared.protocol.schemas import RunIn
from shared.sums import is_basis, is_listed, list_sums, method_of_part, replaces_basis
from shared.sums.common_items import ITEMS, MATCH_HINT, CommonCount, count_common
from shared.sums.item_basis import choose_basis
from shared.sums.sum import BASIS

NO_LIST = "expected a finished run of the part 'items' first, which sums the list of common items, got none"
NOTHING_COMMON = (
    f"expected items whose ids two silos or more have, got none: nothing is summed over items; {MATCH_HINT}"
)


def count_common_items(archive: Archive, run: Run) -> CommonCount:
    """Counts the common items and training pairs in the sum of a finished run.

    Raises DamagedError if the sum is no longer stored whole.
    """
    return count_common(load_state(archive, run, run.request.rounds).arrays)


def resolve_item_list(archive: Archive, request: RunIn, declared: MethodSettings) -> RunIn:
    """Completes a request with the newest item list and the sum that it chooses.

    A basis run gets its sum by the number of items and pairs, a training run the sum that was made last, unless the
    request names one. In a federation whose silos sum no list the request stays as it is. Raises ProtocolError if
    no item is common, or no list is summed yet.
    """
    sums, request = list_sums(declared), request.model_copy(update={"makes_models": False})
    if ITEMS not in sums or (request.part in sums and not is_listed(sums[request.part])):
        makes = ITEMS in sums and replaces_basis(sums[request.part]) and _is_list_empty(archive)
        return request.model_copy(update={"items": None, "makes_models": makes})
    given = "basis" in request.method.model_fields_set and (request.part != BASIS or is_basis(request.method.basis))
    if request.part == TRAINING and given and not is_basis(request.method.basis):
        return request.model_copy(update={"items": None})
    run = newest_list(archive.database)
    if run is None:
        if request.part == TRAINING and not given:
            return request.model_copy(update={"items": None})
        raise ProtocolError(f"items: {NO_LIST}")
    if request.items not in (None, run.name):
        raise ProtocolError(f"items: expected {run.name}, the newest list of common items, got {request.items}")
    request = request.model_copy(update={"items": run.name})
    counted = count_common_items(archive, run)
    if counted.items == 0 and request.part == TRAINING and not given and any(map(replaces_basis, sums.values())):
        return request.model_copy(update={"items": None})
    if counted.items == 0:
        raise ProtocolError(f"items: {NOTHING_COMMON}")
    if given and request.part != BASIS:
        return request
    if request.part == TRAINING:
        made = [one for one in finished_basis_runs(archive.database) if one.request.items == run.name]
        return _set_sum(request, made[-1].request.method.basis) if made else request
    if request.part != BASIS:
        return request
    chosen, why = choose_sum_over_list(declared, counted, request.method.basis.kind if given else None)
    return _set_sum(request, chosen).model_copy(update={"why": why})


def _is_list_empty(archive: Archive) -> bool:
    """Tells whether the newest list of common items is empty."""
    run = newest_list(archive.database)
    return run is not None and count_common_items(archive, run).items == 0


def choose_sum_over_list(
    declared: MethodSettings, counted: CommonCount, requested: str | None
) -> tuple[BasisSettings, str]:
    """Chooses a declared sum by the common items and pairs, and gives the reason.

    requested: kind that the request names, or None. Raises ProtocolError for a kind that is not declared.
    """
    known: dict[str, BasisSettings] = {one.kind: one for one in list_sums(declared).values() if is_basis(one)}
    places: dict[str, int | None] = {one.kind: one.places for one in known.values()}
    settings, why = choose_basis(counted.items, counted.pairs, places)
    kind = requested or str(settings["kind"])
    if requested is not None and requested not in known:
        raise ProtocolError(f"method.basis.kind: expected one of {', '.join(known)}, got {requested!r}")
    if requested is not None or kind not in known:
        kind = requested or next(iter(known))
        why = (
            f"{kind} sums, as {'requested' if requested else 'the federation declares'}: {counted.items:,} common items"
        )
    chosen = known[kind]
    if kind == "iterated" and chosen.directions > counted.items:
        words = f"expected as many common items as directions, {chosen.directions}, for iterated sums"
        raise ProtocolError(f"method.basis.kind: {words}, got {counted.items}: exact sums are for few items")
    if chosen.places is not None and chosen.places < counted.items:
        why += f"; of {counted.items:,} common items the {chosen.places:,} that most silos have are summed"
    return chosen, why


def _set_sum(request: RunIn, basis: BasisSettings) -> RunIn:
    method = request.method.model_copy(update={"basis": basis, "sums": {}})
    part = request.part if request.part == TRAINING else f"{BASIS}_{basis.kind}"
    return request.model_copy(update={"method": method_of_part(method, part), "part": part})
