"""Probes of the client's gate on a transport without network: undeclared calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from audit.evidence.evidence import ProbeResult, make_result
from audit.probes import bodies
from audit.probes.bodies import probe_bodies
from audit.probes.uploads import JSON, Intruder, RoundPlace
from client_service.boundary.gate import Boundary, GateTransport
from client_service.boundary.gate_self_test import NullTransport
from client_service.boundary.ledger import Ledger
from shared.errors import PrivacyError
from shared.protocol.request_heads import USER_AGENT
from shared.protocol.wire import MEDIA_TYPE

KIND = "at the gate"
AGGREGATOR, ELSEWHERE = "http://aggregator:8800", "http://elsewhere:8800"
MOST_BYTES = 64 << 20
PLACE = RoundPlace("run-1", 1)


async def probe_gate(who: Intruder) -> list[ProbeResult]:
    """Tries the bodies that the aggregator must refuse, and calls only a gate sees."""
    with TemporaryDirectory(prefix="lpsfed-probe-") as folder:
        inner = NullTransport()
        async with _gated_client(who, inner, Path(folder)) as http:
            return [await _try_request(http, inner, name, request) for name, request in _gate_requests(who, http)]


def _gated_client(who: Intruder, inner: NullTransport, folder: Path) -> httpx.AsyncClient:
    """Makes an HTTP client behind the gate, as the client builds it.

    Its own name, its own declaration, a ledger; no counts.
    """
    boundary = Boundary(who.client, httpx.URL(AGGREGATOR), who.declaration, False, MOST_BYTES)
    transport = GateTransport(inner, boundary, Ledger(folder / "ledger.jsonl"), who.signatory.key)
    headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
    return httpx.AsyncClient(transport=transport, base_url=AGGREGATOR, headers=headers, trust_env=False)


def _gate_requests(who: Intruder, http: httpx.AsyncClient) -> Iterator[tuple[str, httpx.Request]]:
    def put_request(path: str, body: bytes, media: str = MEDIA_TYPE) -> httpx.Request:
        return http.build_request("PUT", path, content=body, headers={"Content-Type": media})

    own = PLACE.update_path(who.client)
    whole, malformed = probe_bodies(who.declaration, who.client, PLACE.run, PLACE.round)
    yield CONTROL, put_request(own, whole)
    for name, body in malformed.items():
        yield name, put_request(own, body)
    yield "JSON", put_request(own, bodies.NOTHING, JSON)
    yield "another client's name", put_request(PLACE.update_path(who.another), whole)
    for name, join in (
        ("join as another client", bodies.join_body(who.declaration, who.another)),
        ("join with a field more", bodies.join_body_with_more(who.declaration, who.client)),
    ):
        yield name, http.build_request("POST", "/v1/clients", content=join, headers={"Content-Type": JSON})
    yield "question with a parameter more", http.build_request("GET", f"/v1/runs/current?{bodies.WORD}=1")
    yield "a header more", http.build_request("GET", "/v1/runs/run-1/model", headers={"X-Note": bodies.WORD})
    mine = {"Signature": f"sig1={bodies.WORD}"}
    yield "a signature of its own", http.build_request("GET", "/v1/runs/run-1/model", headers=mine)
    yield "another destination", http.build_request("GET", f"{ELSEWHERE}/v1/runs/run-1/model")
    yield "an undeclared call", http.build_request("GET", "/v1/runs")


CONTROL = "control: as declared"


async def _try_request(http: httpx.AsyncClient, inner: NullTransport, name: str, request: httpx.Request) -> ProbeResult:
    before, expected = inner.requests, "passes" if name == CONTROL else "refused, nothing sent"
    try:
        await http.send(request)
        observed = "passes"
    except PrivacyError:
        observed = "refused, nothing sent"
    if inner.requests != before and observed != "passes":
        observed = "refused, but something was sent"
    return make_result(KIND, name, expected, observed)
