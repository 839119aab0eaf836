"""Reads the evidence of running services, page by page."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from audit.evidence.evidence import PartEvidence, utc_now
from shared.errors import FederationError, ProtocolError, TooLargeError, UnavailableError
from shared.method.declaration import Declaration
from shared.protocol.schemas import ArrivalOut, ArrivalsOut, RunHistoryOut
from shared.web.outgoing import describe_call_failure

T = TypeVar("T")

CALL_SECONDS = 60.0  # longest time for one page; the client verifies its ledger for each page
PAGE = 1000
MOST_ENTRIES = 2_000_000
MOST_BYTES = 256 << 20  # largest answer, in bytes


class _Status(BaseModel):
    """Part of a client's status: its name."""

    client: str


class _LedgerPage(BaseModel):
    entries: tuple[dict[str, Any], ...]


_HEADS = TypeAdapter(list[RunHistoryOut])


async def read_client_evidence(http: httpx.AsyncClient, name: str) -> PartEvidence:
    """Reads a client's declaration and its whole ledger.

    Raises ProtocolError if another client answers at that address.
    """
    who = await fetch_answer(http, "/v1/status", TypeAdapter(_Status))
    if who.client != name:
        raise ProtocolError(f"{http.base_url}: expected client {name!r}, got {who.client!r}")
    declaration = await fetch_answer(http, "/v1/declaration", TypeAdapter(Declaration))
    entries = await read_ledger(http)
    return PartEvidence(name=name, role="client", taken_at=utc_now(), declaration=declaration, entries=entries)


async def read_aggregator_evidence(http: httpx.AsyncClient, name: str) -> PartEvidence:
    """Reads the aggregator's declaration, its record of arrivals, and its runs."""
    declaration = await fetch_answer(http, "/v1/declaration", TypeAdapter(Declaration))
    arrivals = await read_all_arrivals(http)
    heads = await fetch_answer(http, "/v1/runs", _HEADS)
    runs = [await fetch_answer(http, f"/v1/runs/{head.run}", TypeAdapter(RunHistoryOut)) for head in heads]
    return PartEvidence(
        name=name,
        role="aggregator",
        taken_at=utc_now(),
        declaration=declaration,
        arrivals=arrivals,
        runs=tuple(runs),
    )


async def read_ledger(http: httpx.AsyncClient) -> tuple[dict[str, Any], ...]:
    """Reads every entry of a ledger."""
    entries: list[dict[str, Any]] = []
    kind = TypeAdapter(_LedgerPage)
    while page := (await fetch_answer(http, "/v1/ledger", kind, after=len(entries), limit=PAGE)).entries:
        entries += page
        _require_bounded(http, len(entries))
    return tuple(entries)


async def read_all_arrivals(http: httpx.AsyncClient) -> tuple[ArrivalOut, ...]:
    """Reads the aggregator's whole record of arrivals."""
    arrivals: list[ArrivalOut] = []
    kind, after = TypeAdapter(ArrivalsOut), 0
    while page := (await fetch_answer(http, "/v1/arrivals", kind, after=after, limit=PAGE)).entries:
        arrivals += page
        after = page[-1].sequence
        _require_bounded(http, len(arrivals))
    return tuple(arrivals)


def _require_bounded(http: httpx.AsyncClient, count: int) -> None:
    if count > MOST_ENTRIES:
        raise TooLargeError(f"{http.base_url}: expected at most {MOST_ENTRIES:,} entries, got more")


async def fetch_answer(http: httpx.AsyncClient, path: str, kind: TypeAdapter[T], **query: int) -> T:
    """Asks one question and returns its answer.

    Raises UnavailableError if there is no answer, ProtocolError if it is another message.
    """
    try:
        async with asyncio.timeout(CALL_SECONDS):
            content = await _read_body(http, path, query)
    except (httpx.HTTPError, TimeoutError) as error:
        raise UnavailableError(
            f"{http.base_url}: expected a running service, got {describe_call_failure(error)}"
        ) from None
    try:
        return kind.validate_json(content)
    except ValidationError:
        raise ProtocolError(f"{http.base_url}: expected the answer to GET {path}, got another message") from None


async def _read_body(http: httpx.AsyncClient, path: str, query: dict[str, int]) -> bytes:
    async with http.stream("GET", path, params=query, timeout=CALL_SECONDS) as answer:
        content = bytearray()
        async for piece in answer.aiter_bytes():
            content += piece
            if len(content) > MOST_BYTES:
                raise TooLargeError(f"{http.base_url}: expected at most {MOST_BYTES:,} bytes, got more")
    if not answer.is_success:
        raise FederationError(f"{http.base_url}: expected an answer to GET {path}, got {answer.status_code}")
    return bytes(content)
