"""Calls to the aggregator as the ledger records them: what left and what came back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from client_service.boundary.call_records import POLLS
from client_service.boundary.ledger import entry_nonce
from shared.protocol.secure.vectors import SCALARS

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One call to the aggregator, or `times` repetitions of an earlier one.

    Repetitions have no body and the same answer. of: sequence number of the earlier call's intent; answer_bytes then
    counts all repetitions together. status, error: None if the client was ended before the answer. nonce,
    head_bytes, created: of the request's signature, of its head, and its time in seconds; None in entries of earlier
    versions.
    """

    sequence: int
    time: str
    call: str
    run: str | None = None
    round: int | None = None
    bytes: int = 0
    sha256: str = ""
    tensors: tuple[Mapping[str, Any], ...] = ()
    scalars: Mapping[str, float] = field(default_factory=dict)
    status: int | None = None
    error: str | None = None
    answer_bytes: int = 0
    answer_sha256: str = ""
    receipt: Mapping[str, Any] | None = None
    nonce: str | None = None
    to: str = ""
    head_bytes: int | None = None
    query: str = ""
    created: int | None = None
    times: int = 1
    of: int | None = None

    @property
    def tensor_names(self) -> frozenset[str]:
        """Names of the declared tensors in the body.

        In a secure round the hidden scalars lie in a tensor of their own, which is left out.
        """
        return frozenset(str(tensor.get("name")) for tensor in self.tensors) - {SCALARS}


def list_attempts(entries: Iterable[Entry]) -> list[Attempt]:
    """Lists the calls of ledger entries, in order.

    Each intent is joined with its outcome, and each count of repeated calls is one attempt. An outcome without an
    intent is left out.
    """
    held = [entry for entry in entries if "kind" in entry]
    outcomes = {entry.get("of"): entry for entry in held if entry["kind"] == "outcome"}
    return [
        _sent_attempt(entry, outcomes.get(entry.get("sequence", 0), {}))
        if entry["kind"] == "intent"
        else _repeated_attempt(entry)
        for entry in held
        if entry["kind"] in ("intent", POLLS)
    ]


def _sent_attempt(intent: Entry, outcome: Entry) -> Attempt:
    return replace(
        _plain_attempt(intent, outcome, intent.get("time", "")),
        bytes=intent.get("bytes", 0),
        sha256=intent.get("sha256", ""),
        tensors=tuple(intent.get("tensors", ())),
        scalars=intent.get("scalars", {}),
        answer_sha256=outcome.get("sha256", ""),
        receipt=outcome.get("receipt"),
        nonce=_nonce(intent),
        to=str(intent.get("to", "")),
        head_bytes=(intent.get("head") or {}).get("bytes"),
        query=str((intent.get("head") or {}).get("query", "")),
        created=intent.get("created"),
    )


def _repeated_attempt(line: Entry) -> Attempt:
    return replace(_plain_attempt(line, line, line.get("from", "")), times=line.get("n", 0), of=line.get("of", 0))


def _plain_attempt(call: Entry, answer: Entry, time: str) -> Attempt:
    """Builds an attempt from the fields that every entry has: the call and its answer."""
    number = call.get("round")
    return Attempt(
        sequence=call.get("sequence", 0),
        time=time,
        call=call.get("call", ""),
        run=call.get("run"),
        round=None if number is None else int(number),
        status=answer.get("status"),
        error=answer.get("error"),
        answer_bytes=answer.get("bytes", 0),
    )


def _nonce(intent: Entry) -> str | None:
    """Returns the nonce that signed the request.

    An entry that was written after its call states it; of others it follows from the entry's hash.
    """
    if "nonce" in intent:
        return str(intent["nonce"])
    return entry_nonce(str(intent.get("hash"))) if "mac" in intent else None
