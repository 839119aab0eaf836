"""The operator of a run: starts it, follows it, describes it, ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from shared.errors import ConflictError, FederationError, ProtocolError, SettingsError
from shared.method.declaration import TRAINING, Declaration, Part
from shared.method.settings import BasisSettings, MethodSettings, complete_settings, validate_settings
from shared.protocol.schemas import ENDED, MemberOut, QuarantineIn, RoundOut, RunHistoryOut, RunIn
from shared.protocol.signing.invitation import DeclaredOut, FederationOut
from shared.strategies import build_strategy
from shared.sums import (
    describe_part,
    find_declared,
    find_part,
    is_basis,
    list_sums,
    makes_models,
    method_of_part,
    replaces_basis,
)
from shared.sums.common_items import ITEMS, MATCH_HINT
from shared.sums.sum import BASIS
from shared.words import count_noun, format_bytes, format_time
from simulation.operating import operator_calls
from simulation.operating.operator_calls import Operator, call_as_operator

ENDED_EARLY = ("failed", "cancelled")
NOTHING_OPENED = "expected items with the same id in two silos or more, or items with titles or attributes, got neither"

Observe = Callable[[RunHistoryOut], None]


def start_run(operator: Operator, request: RunIn) -> RunHistoryOut:
    """Starts a run. FederationError with the aggregator's reason while another is active.

    What the request does not set is as the federation declares it.
    """
    return _parse_history(call_as_operator(operator, "POST", "/v1/runs", request.model_dump_json(exclude_unset=True)))


def start_or_follow_run(operator: Operator, request: RunIn) -> RunHistoryOut:
    """Returns the newest similar run, unless it failed or was cancelled; else starts one.

    Similar: of the same part and common basis. It also finds a run whose start the aggregator has accepted while its
    answer was lost.
    """
    if (run := _find_similar_run(operator, request)) is not None and run.phase not in ENDED_EARLY:
        return run
    try:
        return start_run(operator, request)
    except ConflictError:
        if (run := _find_similar_run(operator, request)) is None:
            raise
        return run


def _find_similar_run(operator: Operator, request: RunIn) -> RunHistoryOut | None:
    wanted = (request.part, request.method.basis)
    alike = [run for run in list_runs(operator) if (run.request.part, run.request.method.basis) == wanted]
    return alike[-1] if alike else None


def run_one_sum(operator: Operator, request: RunIn, part: Part, observe: Observe, *, renew: bool) -> RunHistoryOut:
    """Runs one sum of a training run's request and waits for its end.

    A finished run of the same sum is returned, unless `renew`. Raises FederationError with the reason where it
    failed, unless silos make their models of another sum (`replaces_basis`).
    """
    method = method_of_part(request.method, part)
    sum_request = request.model_copy(update={"part": part, "start": None, "method": method})
    found = _find_similar_run(operator, sum_request)
    if found is None or found.phase in ENDED_EARLY or (renew and found.phase == "finished"):
        found = start_run(operator, sum_request)
    if found.phase != "finished":
        found = watch_run(operator, found.run, observe)
    needed = makes_models(method.basis, request.method) or not replaces_basis(method.basis)
    if found.phase == "cancelled" or (found.phase == "failed" and needed):
        raise FederationError(describe_run(found))
    return found


def run_sums(operator: Operator, request: RunIn, observe: Observe, *, renew: bool) -> tuple[RunIn, list[RunHistoryOut]]:
    """Runs each sum of a training run's request, one after the other.

    Returns the request with the sum that the training run uses, and these runs. Over a list that the silos sum, the
    list chooses which sum is made; over an empty list none is, and silos make their models of the sum that replaces a
    basis. Raises FederationError as `run_one_sum`, and where no sum yields a model.
    """
    sums, held = list_sums(request.method), list[RunHistoryOut]()
    bases = [one for one in sums.values() if is_basis(one)]
    for part, one in sums.items():
        if ITEMS not in sums or not is_basis(one):
            held.append(run_one_sum(operator, request, part, observe, renew=renew))
    if ITEMS not in sums:
        return request.model_copy(update={"method": method_of_part(request.method, TRAINING)}), held
    last = next((one for one in held if one.request.makes_models), None)
    if last is not None:
        if last.phase == "failed":
            raise FederationError(f"{NOTHING_OPENED}; {describe_run(last)}; {MATCH_HINT}")
        nothing = {"basis": BasisSettings(), "sums": {}, "catalogue": 0}
        return request.model_copy(update={"method": request.method.model_copy(update=nothing)}), held
    made = _run_listed_sum(operator, request, bases[0] if len(bases) == 1 else None, observe, renew=renew)
    used = {"basis": made.request.method.basis, "sums": {}, "catalogue": made.request.method.catalogue}
    return request.model_copy(update={"method": request.method.model_copy(update=used)}), [*held, made]


def _run_listed_sum(
    operator: Operator, request: RunIn, basis: BasisSettings | None, observe: Observe, *, renew: bool
) -> RunHistoryOut:
    """Runs the basis over the newest list of common items.

    basis: the requested one; None: the one that the list chooses.
    """
    runs = list_runs(operator)
    listed = next(run.run for run in reversed(runs) if run.request.part == ITEMS and run.phase == "finished")
    made = [run for run in runs if is_basis(run.request.method.basis) and run.request.part != TRAINING]
    alike = [run for run in made if run.request.items == listed and basis in (None, run.request.method.basis)]
    found = alike[-1] if alike else None
    if found is None or found.phase in ENDED_EARLY or (renew and found.phase == "finished"):
        own = request.method.model_dump(exclude_unset=True, exclude={"basis", "sums", "catalogue"})
        kind = {} if basis is None else {"basis": {"kind": basis.kind}}
        method = validate_settings(MethodSettings, {**own, **kind})
        found = start_run(operator, request.model_copy(update={"part": BASIS, "start": None, "method": method}))
    return found if found.phase == "finished" else follow_run(operator, found.run, observe)


def resolve_basis(operator: Operator, method: MethodSettings) -> MethodSettings:
    """Completes a run's settings with the declared catalogue, rank and further sums.

    Raises SettingsError if the federation declares no common basis, or one of another kind.
    """
    sums = fetch_declaration(operator).sums
    if ITEMS in sums:
        return _resolve_listed_basis(fetch_federation(operator), method)
    declared = sums.get(BASIS)
    if declared is None:
        words = (
            "expected a federation that declares a common basis (--share sums, or METHOD__BASIS__KIND), got one without"
        )
        raise SettingsError(f"--common-basis: {words}")
    chosen = find_declared(declared)
    if method.basis.kind != chosen.name:
        raise SettingsError(
            f"--common-basis: expected {chosen.name}, as this federation has declared, got {method.basis.kind}"
        )
    sizes = chosen.sizes(method.basis, {spec.name: spec.shape for spec in declared.tensors})
    own = {name.removeprefix("basis."): size for name, size in sizes.items() if name.startswith("basis.")}
    others: dict[str, Any] = {name: size for name, size in sizes.items() if not name.startswith("basis.")}
    beside = list_sums(fetch_federation(operator).method)
    others["sums"] = {part: one for part, one in beside.items() if not is_basis(one)}
    return method.model_copy(update={**others, "basis": method.basis.model_copy(update=own)})


def _resolve_listed_basis(federation: FederationOut, method: MethodSettings) -> MethodSettings:
    """Completes a run's settings where the silos sum the list of their items."""
    sums = list_sums(federation.method)
    known = {one.kind: one for one in sums.values() if is_basis(one)}
    if method.basis.kind not in known:
        words = f"expected one of {', '.join(known)}, as this federation has declared"
        raise SettingsError(f"--common-basis: {words}, got {method.basis.kind}")
    chosen = known[method.basis.kind]
    others = {part: one for part, one in sums.items() if not is_basis(one)}
    return method.model_copy(update={"basis": BasisSettings(), "sums": {**others, find_part(chosen): chosen}})


def fetch_federation(operator: Operator) -> DeclaredOut:
    """Fetches the settings with which runs of this federation begin."""
    try:
        return DeclaredOut.model_validate(call_as_operator(operator, "GET", "/v1/federation"))
    except ValidationError:
        raise ProtocolError("expected the federation's settings from the aggregator, got another answer") from None


def has_sums_alone(operator: Operator) -> bool:
    """Tells whether silos exchange sums alone, from which each builds its model."""
    federation = fetch_federation(operator)
    return build_strategy(federation.strategy, federation.method).sums_alone


def apply_declared_sums(request: RunIn, federation: FederationOut, *, basis: bool, rounds: bool) -> RunIn:
    """Completes the request with the federation's declared sums.

    basis: its sums, unless the request changes a part of the common basis. rounds: as many as change anything, where
    nothing is trained.
    """
    method, declared = request.method, list_sums(federation.method)
    if basis and declared:
        values = declared.get(BASIS, BasisSettings()).model_dump() | method.basis.model_dump(exclude_unset=True)
        others = {part: one for part, one in declared.items() if part != BASIS}
        update = {"basis": validate_settings(BasisSettings, values), "sums": others}
        method = method.model_copy(update={**update, "catalogue": federation.method.catalogue})
    whole = complete_settings(method, federation.method)
    enough = build_strategy(federation.strategy, whole).enough_rounds if rounds else None
    return request.model_copy(update={"method": method, **({} if enough is None else {"rounds": enough})})


def fetch_declaration(operator: Operator) -> Declaration:
    """Fetches the declaration: what every client of this federation may send."""
    try:
        return Declaration.model_validate(call_as_operator(operator, "GET", "/v1/declaration"))
    except ValidationError:
        raise ProtocolError("expected a declaration from the aggregator, got another answer") from None


def latest_run(operator: Operator) -> RunHistoryOut | None:
    """Returns the newest run, without its rounds."""
    return runs[-1] if (runs := list_runs(operator)) else None


def list_runs(operator: Operator) -> list[RunHistoryOut]:
    """Lists every run without its rounds, oldest first."""
    runs = call_as_operator(operator, "GET", "/v1/runs")
    return [_parse_history(run) for run in runs] if isinstance(runs, list) else []


def list_members(operator: Operator) -> list[MemberOut]:
    """Lists every client of the federation by name, and whether it is quarantined."""
    answer = call_as_operator(operator, "GET", "/v1/clients")
    return [_parse_member(member) for member in answer] if isinstance(answer, list) else []


def quarantine_client(operator: Operator, client: str, reason: str) -> MemberOut:
    """Quarantines a client. FederationError for an unknown or quarantined one."""
    body = validate_settings(QuarantineIn, {"reason": reason}).model_dump_json()
    return _parse_member(call_as_operator(operator, "POST", f"/v1/clients/{quote(client, safe='')}/quarantine", body))


def lift_quarantine(operator: Operator, client: str) -> MemberOut:
    """Lifts a client's quarantine. FederationError for a client that has none."""
    return _parse_member(call_as_operator(operator, "DELETE", f"/v1/clients/{quote(client, safe='')}/quarantine"))


def fetch_run(operator: Operator, run: str | None) -> RunHistoryOut | None:
    """Fetches a run with its rounds; None without any.

    run: by default the newest, without failed sums that others replace: silos serve models in spite of these.
    """
    runs = [] if run else list_runs(operator)
    whole = [one.run for one in runs if one.phase != "failed" or _is_needed(one)]
    name = run or next(iter((whole or [one.run for one in runs])[::-1]), None)
    return None if name is None else _parse_history(call_as_operator(operator, "GET", f"/v1/runs/{name}"))


def _is_needed(run: RunHistoryOut) -> bool:
    """Tells whether silos lack a model if this run fails.

    A sum beside those of items may fail.
    """
    return run.sum is None or run.request.makes_models or not replaces_basis(run.request.method.basis)


def cancel_run(operator: Operator, run: str) -> RunHistoryOut:
    """Cancels a run. FederationError for an unknown run, or one that has ended."""
    return _parse_history(call_as_operator(operator, "DELETE", f"/v1/runs/{quote(run, safe='')}"))


def describe_run(run: RunHistoryOut) -> str:
    """Describes a run in one line: missing clients and deadline, or how it ended."""
    request = run.request
    if run.phase == "failed":
        return f"{run.run} has failed: {run.reason}"
    if run.phase == "cancelled":
        held = (
            f"after {count_closed_rounds(run)} of {count_noun(request.rounds, 'round')}"
            if run.rounds
            else "before its first round"
        )
        return f"{run.run} is cancelled: the operator has ended it {held}"
    if run.phase == "waiting":
        there = f"{len(run.enrolled)} of {request.clients} clients have joined"
        missing = f"; missing: {_join_names(run.missing)}" if run.missing else ""
        lacking = f"{missing}{_describe_missing_clients(run)}"
        return f"{run.run} waits for clients: {there}{lacking}; until {format_time(run.deadline_at)} UTC"
    now = run.rounds[-1]
    what = "" if request.part == TRAINING else f", {describe_part(request.part, request.method.basis.kind)}"
    where = f"{run.run}{what}, round {now.number} of {request.rounds}"
    if run.phase != "open":
        return f"{where}: {run.phase}"
    came = sum(participant.received for participant in now.participants)
    needed = f"{came} of {len(now.participants)} updates, {request.quorum or request.clients} needed"
    return f"{where} is open: {needed}; missing: {_join_names(run.missing)}; until {format_time(run.deadline_at)} UTC"


def describe_sum(run: RunHistoryOut) -> str | None:
    """Describes a run that sums in one line; None for another run.

    The line names the sum, the reason for its choice, and its cost.
    """
    if (found := run.sum) is None:
        return None
    where = f"{run.run}, {describe_part(run.request.part, run.request.method.basis.kind)}"
    if run.phase in ENDED_EARLY:
        return f"{where}: not opened: {run.reason}"
    cost = [] if found.bytes is None else [f"{format_bytes(found.bytes)} of all silos"]
    cost += [] if found.seconds is None else [f"{found.seconds:.1f} s"]
    common = [] if found.common is None else [f"{count_noun(found.common, 'item')} in common"]
    reason = f"{where}: {found.reason or found.kind}"
    return "; ".join([reason, *common, *([] if not cost else [" in ".join(cost)])])


def list_newest_sums(operator: Operator, run: RunHistoryOut) -> list[RunHistoryOut]:
    """Lists the newest run of each sum up to this run, oldest first."""
    newest = dict[str, str]()
    for one in list_runs(operator):
        if one.sum is not None:
            newest.pop(one.request.part, None)
            newest[one.request.part] = one.run
        if one.run == run.run:
            break
    found = (fetch_run(operator, name) for name in newest.values())
    return [one for one in found if one is not None]


def _describe_missing_clients(run: RunHistoryOut) -> str:
    """Describes how many clients a waiting run lacks, where fewer are registered than it needs."""
    registered = len({*run.enrolled, *run.missing})
    if registered >= run.request.clients:
        return ""
    more = f"register {run.request.clients - registered} more, or cancel it"
    if registered == 0:
        return f"; none is registered: {more}"
    return f"; only {registered} are registered: {more} and start one with --clients {registered}"


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def follow_run(operator: Operator, run: str, observe: Observe) -> RunHistoryOut:
    """Watches a run until it ends. FederationError if it failed or was cancelled."""
    history = watch_run(operator, run, observe)
    if history.phase == "failed":
        raise FederationError(f"{run} failed: {history.reason}")
    if history.phase == "cancelled":
        raise FederationError(describe_run(history))
    return history


def watch_run(operator: Operator, run: str, observe: Observe) -> RunHistoryOut:
    """Observes a run until it has ended, in any way. Its own deadlines bound that."""
    while True:
        history = _parse_history(call_as_operator(operator, "GET", f"/v1/runs/{run}"))
        observe(history)
        if history.phase in ENDED:
            return history
        time.sleep(operator_calls.POLL_SECONDS)


def count_closed_rounds(run: RunHistoryOut) -> int:
    """Counts the rounds that are aggregated."""
    return sum(one.phase in ("aggregated", "finished") for one in run.rounds)


def describe_round(request: RunIn, done: RoundOut) -> str:
    """Describes a closed round in one line."""
    received = [participant for participant in done.participants if participant.received]
    size = sum(participant.size for participant in received)
    return (
        f"round {done.number} of {request.rounds}: {len(received)} of {len(done.participants)} updates, {size:,} bytes"
    )


def _parse_member(answer: object) -> MemberOut:
    try:
        return MemberOut.model_validate(answer)
    except ValidationError:
        raise ProtocolError("expected a client of the federation from the aggregator, got another answer") from None


def _parse_history(answer: object) -> RunHistoryOut:
    try:
        return RunHistoryOut.model_validate(answer)
    except ValidationError:
        raise ProtocolError("expected a run's history from the aggregator, got another answer") from None
