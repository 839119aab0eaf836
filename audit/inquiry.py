"""Which part is being probed, and from where -> all its probes, and what it shows of itself, as evidence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from audit import collect
from audit.evidence import Evidence, Probe, Role, now
from audit.probes import addresses, bodies, gate, network, own_gate, standing, uploads
from audit.probes.meeting import Part
from audit.probes.network import Outside, Surroundings
from audit.probes.standing import Standing
from client_service.boundary.signing_key import own_key
from shared.errors import SettingsError
from shared.protocol.signing.messages import Signatory
from shared.web.address import require_url
from shared.web.calling import Calling

CALL_SECONDS = 60.0  # a busy machine answers late


@dataclass(frozen=True)
class Services:
    """Where the services answer, and the files with the secrets to ask them with.

    `signing_key`: the client's own; `token`, `key`: of the aggregator's operator, and of the client's.
    """

    aggregator: str
    client: str
    signing_key: Path | None
    token: Path | None
    key: Path | None = None
    calling: Calling = field(default_factory=Calling)


def nobody_to_tell(evidence: Evidence) -> None:
    """Where nothing is recorded."""
    del evidence


async def nothing_to_wait_for() -> None:
    """Where parts are probed one by one."""


@dataclass(frozen=True)
class Inquiry:
    """`parts`: all others that are known; `recorded`: is its ledger or record to be part of the evidence?

    `announce`: called with what is about to be sent, before it is. `settled`: done once the others have sent what they
    have to send, so that the aggregator's record has it.
    """

    own: Part
    parts: Mapping[str, Part]
    outside: Outside
    published: tuple[int, ...]
    standing: Standing
    services: Services
    recorded: bool
    announce: Callable[[Evidence], None] = nobody_to_tell
    settled: Callable[[], Awaitable[None]] = nothing_to_wait_for


async def inquire(inquiry: Inquiry) -> Evidence:
    """Every probe of the part's role, and then its evidence."""
    probes = await network.probe(_surroundings(inquiry))
    if inquiry.own.role != "gateway" or inquiry.standing.expected is not None:
        probes += standing.probe(inquiry.standing)
    if inquiry.own.role == "gateway":
        return Evidence(name=inquiry.own.name, role="gateway", taken_at=now(), probes=tuple(probes))
    found = await (_client(inquiry) if inquiry.own.role == "client" else _aggregator(inquiry))
    return found.model_copy(update={"probes": (*probes, *found.probes)})


def _surroundings(inquiry: Inquiry) -> Surroundings:
    hosts = addresses.hosts(addresses.own())
    services = inquiry.services
    urls: dict[Role, str] = {"aggregator": services.aggregator, "client": services.client}
    by_tls = {role: services.calling.context for role, url in urls.items() if url.startswith("https:")}
    return Surroundings(inquiry.own, inquiry.parts, hosts, inquiry.published, inquiry.outside, by_tls)


async def _aggregator(inquiry: Inquiry) -> Evidence:
    if not inquiry.recorded:
        return Evidence(name=inquiry.own.name, role="aggregator", taken_at=now())
    if inquiry.services.token is None:
        raise SettingsError("expected --operator-token-file, to read the aggregator's record")
    await inquiry.settled()
    services, bearer = inquiry.services, token(inquiry.services.token)
    async with opened(services.aggregator, bearer, calling=services.calling) as http:
        return await collect.of_aggregator(http, inquiry.own.name)


async def _client(inquiry: Inquiry) -> Evidence:
    """A client's ledger is needed for its uploads too: it tells which round has its update."""
    name, services = inquiry.own.name, inquiry.services
    async with opened(services.aggregator, calling=services.calling) as aggregator:
        control = await _answers(aggregator)
        if services.signing_key is None and not inquiry.recorded:
            return Evidence(name=name, role="client", taken_at=now(), probes=(control,))
        key = None if services.key is None else token(services.key)
        async with opened(services.client, key, calling=services.calling) as client:
            found = await collect.of_client(client, name)
            gated = await own_gate.probe(client, inquiry.standing)
        if services.signing_key is None:
            return found.model_copy(update={"probes": (control, *gated)})
        who = _intruder(inquiry, found, services.signing_key)
        place = uploads.latest_place(found)
        inquiry.announce(found.model_copy(update={"sent": uploads.planned(who, place)}))
        tried, sent = await uploads.probe(aggregator, who, place)
    probes = (control, *tried, *await gate.probe(who), *gated)
    return found.model_copy(update={"probes": probes, "sent": tuple(sent)})


def _intruder(inquiry: Inquiry, found: Evidence, key: Path) -> uploads.Intruder:
    names = sorted(part.name for part in inquiry.parts.values() if part.role == "client")
    assert found.declaration is not None
    who = Signatory(found.name, own_key(found.name, Path(), key))
    return uploads.Intruder(who, names[0] if names else bodies.ANOTHER, found.declaration)


async def _answers(http: httpx.AsyncClient) -> Probe:
    """The control: whom a client must reach, it reaches."""
    try:
        observed = str((await http.get("/health/live")).status_code)
    except httpx.TransportError as error:
        observed = type(error).__name__
    name = http.base_url.host
    return Probe(kind="control: the aggregator", name=name, expected="200", observed=observed, held=observed == "200")


def opened(url: str, bearer: str | None = None, *, calling: Calling) -> httpx.AsyncClient:
    """A way to ask a service, past the gate and past every proxy of the environment."""
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    return httpx.AsyncClient(
        base_url=require_url(url), headers=headers, timeout=CALL_SECONDS, trust_env=False, verify=calling.context
    )


def token(path: Path) -> str:
    """An operator's secret."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"operator token: expected a readable text file ({error})") from None
