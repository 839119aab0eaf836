"""Ledger entries -> attempts: each call that was made, what left with it, and what came back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from client_service.boundary.ledger import entry_nonce

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One call to the aggregator.

    status, error: None where the client was ended before the answer. nonce: by which the request was signed, None in
    entries of clients whose nonces told nothing of their ledgers. head_bytes: of its head on the wire, None in entries
    of clients that did not count them.
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


def attempts(entries: Iterable[Entry]) -> list[Attempt]:
    """Each intent with its outcome, in the order of the intents. An outcome without an intent is left out."""
    held = [entry for entry in entries if "kind" in entry]
    outcomes = {entry.get("of"): entry for entry in held if entry["kind"] == "outcome"}
    return [_attempt(entry, outcomes.get(entry.get("sequence", 0), {})) for entry in held if entry["kind"] == "intent"]


def _attempt(intent: Entry, outcome: Entry) -> Attempt:
    number = intent.get("round")
    return Attempt(
        sequence=intent.get("sequence", 0),
        time=intent.get("time", ""),
        call=intent.get("call", ""),
        run=intent.get("run"),
        round=None if number is None else int(number),
        bytes=intent.get("bytes", 0),
        sha256=intent.get("sha256", ""),
        tensors=tuple(intent.get("tensors", ())),
        scalars=intent.get("scalars", {}),
        status=outcome.get("status"),
        error=outcome.get("error"),
        answer_bytes=outcome.get("bytes", 0),
        answer_sha256=outcome.get("sha256", ""),
        receipt=outcome.get("receipt"),
        nonce=entry_nonce(str(intent.get("hash"))) if "mac" in intent else None,
        to=str(intent.get("to", "")),
        head_bytes=(intent.get("head") or {}).get("bytes"),
    )
