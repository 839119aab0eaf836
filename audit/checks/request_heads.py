"""Compares the heads of requests on the ledgers with the heads that arrived."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import httpx

from audit.checks.findings import AuditFinding, make_finding
from audit.checks.records import MatchedBodies, ReportedBody
from audit.evidence.case import AuditCase
from audit.probes import bodies
from client_service.boundary.call_attempts import Attempt
from client_service.boundary.secure_bodies import ANSWERED
from shared.errors import HeadError
from shared.protocol.request_heads import NUMBER, RequestHead
from shared.protocol.schemas import ArrivalOut
from shared.protocol.wire import MEDIA_TYPE
from shared.words import count_noun

JSON = "application/json"
WAITED = re.compile(f"wait={NUMBER}")  # the only query of a request with a body
PROBED = ((bodies.HEADER, len(bodies.HEADER) + len(bodies.WORD)),)  # what the probes themselves add to a head


def expected_head(client: str, attempt: Attempt) -> RequestHead:
    """Returns the canonical head of a request with a body."""
    host = httpx.URL(attempt.to).netloc.decode("ascii")
    if attempt.call == "join":
        return RequestHead("POST", "/v1/clients", host, JSON, attempt.bytes)
    target = f"/v1/runs/{attempt.run}/rounds/{attempt.round}/clients/{client}/{attempt.call}"
    if attempt.call in ANSWERED and WAITED.fullmatch(attempt.query):
        target += f"?{attempt.query}"
    return RequestHead("PUT", target, host, MEDIA_TYPE if attempt.call == "update" else JSON, attempt.bytes)


def check_heads(case: AuditCase, matches: Mapping[str, MatchedBodies]) -> AuditFinding:
    """Checks that no sender has added a header, a space or a word.

    The aggregator records every head's length and digest, and refuses a head that no client sends.
    """
    pairs = {
        name: [(arrival, sending) for arrival, sending in matched.pairs if sending.source == "ledger"]
        for name, matched in matches.items()
    }
    held = sum(arrival.head is not None for matched in pairs.values() for arrival, _ in matched)
    return make_finding(
        "request heads",
        "every request head has the length on its ledger and the content of its call",
        f"{count_noun(held, 'head')}, all identical",
        [
            *_refused_heads(case),
            *(fault for name, matched in pairs.items() for fault in _head_differences(name, matched)),
        ],
    )


def _refused_heads(case: AuditCase) -> Iterator[str]:
    for arrival in case.arrivals:
        if arrival.code != HeadError.code:
            continue
        others = () if arrival.head is None else tuple((other.name, other.bytes) for other in arrival.head.others)
        if others == PROBED:
            continue
        description = (
            ", ".join(f"header {name!r} of {size:,} bytes" for name, size in others) or "content that no client sends"
        )
        yield f"{arrival.client}: {description}, refused with {arrival.status}"


def _head_differences(name: str, pairs: list[tuple[ArrivalOut, ReportedBody]]) -> Iterator[str]:
    for arrival, sending in pairs:
        came, left = arrival.head, sending.attempt
        if came is None or left is None or left.head_bytes is None:  # recorded before heads were
            continue
        where = f"{name}, {sending.call}" + (f" of {sending.run} round {sending.round}" if sending.run else "")
        if came.bytes is not None and came.bytes != left.head_bytes:
            yield f"{where}: a head of {came.bytes:,} bytes arrived, {left.head_bytes:,} on the ledger"
        elif left.head_bytes != expected_head(name, left).size(name):
            yield f"{where}: a head of {left.head_bytes:,} bytes on the ledger, which is not its call's"
        elif came.sha256 != expected_head(name, left).digest():
            yield f"{where}: a head with other content than its call's"
        for other in came.others:
            if came.bytes is not None:
                yield f"{where}: header {other.name!r} of {other.bytes:,} bytes, which no client sends"
