"""Ledger entries -> attempts: each call that was made, what left with it, and what came back."""

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
    """One call to the aggregator; or so many `times` one like an earlier one, which had no body, with the same answer.

    of: the sequence number of the earlier one's intent; answer_bytes: of all of them together.
    status, error: None where the client was ended before the answer. nonce: by which the request was signed, None in
    entries of clients whose nonces told nothing of their ledgers. head_bytes: of its head on the wire, None in entries
    of clients that did not count them. created: the second of its time, by which the request was signed, None in
    entries of clients that signed by another.
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
    created: int | None = None
    times: int = 1
    of: int | None = None

    @property
    def tensor_names(self) -> frozenset[str]:
        """Of the declared tensors in its body; in a secure round the hidden scalars lie in one of their own."""
        return frozenset(str(tensor.get("name")) for tensor in self.tensors) - {SCALARS}


def list_attempts(entries: Iterable[Entry]) -> list[Attempt]:
    """Each intent with its outcome, and each count of calls, in order. An outcome without an intent is left out."""
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
        created=intent.get("created"),
    )


def _repeated_attempt(line: Entry) -> Attempt:
    return replace(_plain_attempt(line, line, line.get("from", "")), times=line.get("n", 0), of=line.get("of", 0))


def _plain_attempt(asked: Entry, came: Entry, time: str) -> Attempt:
    """What is told of every call alike: which one it was, and what came back."""
    number = asked.get("round")
    return Attempt(
        sequence=asked.get("sequence", 0),
        time=time,
        call=asked.get("call", ""),
        run=asked.get("run"),
        round=None if number is None else int(number),
        status=came.get("status"),
        error=came.get("error"),
        answer_bytes=came.get("bytes", 0),
    )


def _nonce(intent: Entry) -> str | None:
    """One that was written after its call says by which it was signed."""
    if "nonce" in intent:
        return str(intent["nonce"])
    return entry_nonce(str(intent.get("hash"))) if "mac" in intent else None
