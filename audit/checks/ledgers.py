"""Checks of ledgers by themselves: unbroken, only declared calls, only declared fields."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from audit.checks.findings import AuditFinding, make_finding
from audit.evidence.case import AuditCase, AuditedClient
from client_service.boundary.call_attempts import Attempt
from client_service.boundary.call_records import POLLS
from client_service.boundary.gate import declared_calls
from client_service.boundary.ledger import follow_chain
from client_service.boundary.ledger_heads import ADOPTED
from client_service.boundary.secure_bodies import MESSAGES
from shared.method.declaration import Counts, Declaration
from shared.method.parameters import Form
from shared.protocol.masked_wire import body_forms, masked_body_size, readable_scalars
from shared.protocol.schemas import JoinIn
from shared.protocol.secure.messages import MaskedHeader
from shared.protocol.wire import body_size
from shared.words import count_noun

CALLS_WITH_BODY = ("update", *MESSAGES)  # the calls of a round that have a body


def check_chain(case: AuditCase) -> AuditFinding:
    """Checks that each ledger is an unbroken chain of hashes, numbered from 1."""
    entries = [entry for client in case.clients.values() for entry in client.evidence.entries]
    adopted = sum(entry.get("kind") == ADOPTED for entry in entries)
    adoptions = f"; the silos adopted their records as they were {count_noun(adopted, 'time')}" if adopted else ""
    return make_finding(
        "chain",
        "every ledger an unbroken chain of hashes from its first entry",
        f"{count_noun(len(case.clients), 'ledger')}, {count_noun(len(entries), 'entry', 'entries')}, unbroken"
        + adoptions,
        (f"{name}: {fault}" for name, client in case.clients.items() for fault in _chain_faults(client)),
    )


def _chain_faults(client: AuditedClient) -> Iterator[str]:
    entries = client.evidence.entries
    _, broken = follow_chain(entries)
    if broken is not None:
        yield f"entry {broken} does not follow from the one before"
    elif [entry.get("sequence") for entry in entries] != list(range(1, len(entries) + 1)):
        yield "the entries are not numbered from 1 on"


def check_calls(case: AuditCase) -> AuditFinding:
    """Checks that each ledger holds declared calls alone, to one aggregator.

    And a body only with calls that have one.
    """
    kinds = sorted({attempt.call for client in case.clients.values() for attempt in client.attempts})
    total = sum(attempt.times for client in case.clients.values() for attempt in client.attempts)
    places = sorted({place for client in case.clients.values() for place in _call_places(client)})
    return make_finding(
        "calls",
        "only declared calls, and to the aggregator only",
        f"{count_noun(total, 'call')} to {', '.join(places) or 'no address'}: {', '.join(kinds) or 'none'}",
        (f"{name}: {fault}" for name, client in case.clients.items() for fault in _call_faults(name, client)),
    )


def _call_faults(name: str, client: AuditedClient) -> Iterator[str]:
    declared = {call.name for call in declared_calls(name, secure=client.declaration.secure)}
    for attempt in client.attempts:
        if attempt.call not in declared:
            yield f"undeclared call {attempt.call!r}"
        elif attempt.bytes and attempt.call not in ("join", *CALLS_WITH_BODY):
            yield f"a body of {attempt.bytes:,} bytes with {attempt.call!r}"
    if len(places := _call_places(client)) > 1:
        yield f"calls to {len(places)} places: {', '.join(map(repr, sorted(places)))}"
    yield from _stray_entries(client)
    intents = [entry for entry in client.evidence.entries if entry.get("kind") == "intent"]
    dated = next((place for place, entry in enumerate(intents) if "created" in entry), len(intents))
    if missing := sum("created" not in entry for entry in intents[dated:]):
        yield f"{count_noun(missing, 'call')} without the time of the signature, after others with it"


def _call_places(client: AuditedClient) -> set[str]:
    return {str(entry.get("to")) for entry in client.evidence.entries if entry.get("kind") == "intent"}


def _stray_entries(client: AuditedClient) -> Iterator[str]:
    """Yields faults of entries that are no intent, outcome or count of calls.

    An outcome belongs to one earlier intent, and a count to an earlier call without a body. `check_chain` counts
    adoptions.
    """
    waiting: dict[Any, Mapping[str, Any]] = {}
    ended: dict[Any, Mapping[str, Any]] = {}
    for number, entry in enumerate(client.evidence.entries, start=1):
        if entry.get("kind") == "intent":
            waiting[entry.get("sequence")] = entry
        elif entry.get("kind") == "outcome" and entry.get("of") in waiting:
            ended[entry.get("of")] = {**_call_place(waiting.pop(entry.get("of"))), **_call_answer(entry)}
        elif entry.get("kind") == POLLS:
            if not _repeats_call(entry, ended.get(entry.get("of"))):
                yield f"entry {number} counts calls that are not like an earlier one without a body"
        elif entry.get("kind") != ADOPTED:
            yield f"entry {number} is neither an intent nor the outcome of one"


def _repeats_call(line: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> bool:
    """Tells whether a line counts repetitions of that call.

    The same question without a body, and the same status or error.
    """
    if earlier is None or earlier["body"] != 0:
        return False
    same = {**_call_place(line), **_call_answer(line)} == {**earlier, "body": None}
    return same and type(line.get("n")) is int and line["n"] > 0


def _call_place(entry: Mapping[str, Any]) -> dict[str, Any]:
    body = entry.get("bytes") if entry.get("kind") == "intent" else None
    return {"body": body, "call": entry.get("call"), "run": entry.get("run"), "round": entry.get("round")}


def _call_answer(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"status": entry.get("status"), "error": entry.get("error")}


def check_fields(case: AuditCase) -> AuditFinding:
    """Checks that updates and joins hold the declared fields and nothing else.

    The declared tensors and at most the declared scalars, in a body of the length that follows from them; each join
    the declaration.
    """
    updates = sum(len(client.attempts_of("update")) for client in case.clients.values())
    joins = sum(len(client.attempts_of("join")) for client in case.clients.values())
    return make_finding(
        "fields",
        "in every update the declared tensors and at most the declared scalars, in every join the declaration",
        f"{count_noun(updates, 'update')} and {count_noun(joins, 'join')} hold exactly these",
        (f"{name}, {fault}" for name, client in case.clients.items() for fault in _field_faults(case, client)),
    )


def _field_faults(case: AuditCase, client: AuditedClient) -> Iterator[str]:
    for attempt in client.attempts_of("update"):
        where, declared = f"{attempt.run} round {attempt.round}", case.declared_for(client, attempt)
        faults = [*_tensor_faults(declared, attempt), *_scalar_faults(declared, attempt)]
        if not faults and attempt.bytes != _body_length(client.evidence.name, declared, attempt):
            faults.append(f"a body of {attempt.bytes:,} bytes, other than its fields make")
        yield from (f"{where}: {fault}" for fault in faults)
    for entry in client.evidence.entries:
        if entry.get("kind") == "intent" and entry.get("call") == "join" and not _is_declared_join(client, entry):
            yield "join: another body than the declaration makes"


def _tensor_faults(declaration: Declaration, attempt: Attempt) -> Iterator[str]:
    declared = body_forms(declaration)
    came = [str(tensor.get("name")) for tensor in attempt.tensors]
    yield from (f"undeclared tensor {name!r}" for name in came if name not in declared)
    yield from (f"no tensor {name!r}" for name in declared if name not in came)
    yield from (f"tensor {name!r} twice" for name in sorted({name for name in came if came.count(name) > 1}))
    for tensor in attempt.tensors:
        name = str(tensor.get("name"))
        form = declared.get(name)
        if form is not None and not _has_form(tensor, form):
            yield f"tensor {name!r} in another form than {form.dtype} {list(form.shape)}"


def _has_form(tensor: Mapping[str, Any], form: Form) -> bool:
    return (tensor.get("dtype"), tensor.get("shape"), tensor.get("bytes")) == (form.dtype, [*form.shape], form.bytes)


def _scalar_faults(declaration: Declaration, attempt: Attempt) -> Iterator[str]:
    for name, value in attempt.scalars.items():
        if name not in readable_scalars(declaration):
            yield f"undeclared scalar {name!r}"
        elif not math.isfinite(value):
            yield f"scalar {name!r} that is no finite number"


def _body_length(client: str, declaration: Declaration, attempt: Attempt) -> int:
    """Returns the bytes of a body with the declared tensors and these scalars."""
    scalars = attempt.scalars
    if declaration.secure:
        place = {"run": str(attempt.run), "round": attempt.round or 1, "client": client}
        header = MaskedHeader.model_validate({**place, "digest": "0" * 64, "scalars": scalars})
        return masked_body_size(declaration, header)
    return body_size(body_forms(declaration), scalars)


def _is_declared_join(client: AuditedClient, entry: Mapping[str, Any]) -> bool:
    """Tells whether a join holds only name, declaration and, if allowed, three counts."""
    try:
        counts = Counts.model_validate(entry["join"]["counts"]) if entry["join"]["counts"] is not None else None
    except (ValidationError, KeyError, TypeError):
        return False
    message = JoinIn(client=client.evidence.name, declaration=client.declaration, counts=counts)
    return hashlib.sha256(message.model_dump_json().encode()).hexdigest() == entry.get("sha256")
