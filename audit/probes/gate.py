"""The client's own gate, over a wire that leads nowhere -> undeclared calls put to it, and whether any got through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from audit.evidence import Probe
from audit.probes import bodies
from audit.probes.masked import probing
from audit.probes.uploads import JSON, Intruder, Place
from client_service.boundary.gate import Boundary, GateTransport
from client_service.boundary.ledger import Ledger
from client_service.boundary.self_check import Nowhere
from shared.errors import PrivacyError
from shared.protocol.heads import USER_AGENT
from shared.protocol.wire import MEDIA_TYPE

KIND = "at the gate"
AGGREGATOR, ELSEWHERE = "http://aggregator:8800", "http://elsewhere:8800"
MOST_BYTES = 64 << 20
PLACE = Place("run-1", 1)


async def probe(who: Intruder) -> list[Probe]:
    """The same bodies that the aggregator must refuse, and calls that only a gate can see."""
    with TemporaryDirectory(prefix="lpsfed-probe-") as folder:
        beneath = Nowhere()
        async with _gated(who, beneath, Path(folder)) as http:
            return [await _put(http, beneath, name, request) for name, request in _requests(who, http)]


def _gated(who: Intruder, beneath: Nowhere, folder: Path) -> httpx.AsyncClient:
    """As the client builds it: its own name, its own declaration, a ledger; no counts."""
    boundary = Boundary(who.client, httpx.URL(AGGREGATOR), who.declaration, False, MOST_BYTES)
    transport = GateTransport(beneath, boundary, Ledger(folder / "ledger.jsonl"), who.signatory.key)
    said = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
    return httpx.AsyncClient(transport=transport, base_url=AGGREGATOR, headers=said, trust_env=False)


def _requests(who: Intruder, http: httpx.AsyncClient) -> Iterator[tuple[str, httpx.Request]]:
    def put(path: str, body: bytes, media: str = MEDIA_TYPE) -> httpx.Request:
        return http.build_request("PUT", path, content=body, headers={"Content-Type": media})

    own, (whole, malformed) = PLACE.of(who.client), probing(who.declaration, who.client, PLACE.run, PLACE.round)
    yield CONTROL, put(own, whole)
    for name, body in malformed.items():
        yield name, put(own, body)
    yield "JSON", put(own, bodies.NOTHING, JSON)
    yield "another client's name", put(PLACE.of(who.another), whole)
    for name, join in (
        ("join as another client", bodies.join(who.declaration, who.another)),
        ("join with a field more", bodies.join_with_more(who.declaration, who.client)),
    ):
        yield name, http.build_request("POST", "/v1/clients", content=join, headers={"Content-Type": JSON})
    yield "question with a parameter more", http.build_request("GET", f"/v1/runs/current?{bodies.WORD}=1")
    yield "a header more", http.build_request("GET", "/v1/runs/run-1/model", headers={"X-Note": bodies.WORD})
    mine = {"Signature": f"sig1={bodies.WORD}"}
    yield "a signature of its own", http.build_request("GET", "/v1/runs/run-1/model", headers=mine)
    yield "another destination", http.build_request("GET", f"{ELSEWHERE}/v1/runs/run-1/model")
    yield "an undeclared call", http.build_request("GET", "/v1/runs")


CONTROL = "control: as declared"


async def _put(http: httpx.AsyncClient, beneath: Nowhere, name: str, request: httpx.Request) -> Probe:
    before, expected = beneath.reached, "passes" if name == CONTROL else "refused, nothing sent"
    try:
        await http.send(request)
        observed = "passes"
    except PrivacyError:
        observed = "refused, nothing sent"
    if beneath.reached != before and observed != "passes":
        observed = "refused, but something was sent"
    return Probe(kind=KIND, name=name, expected=expected, observed=observed, held=expected == observed)
