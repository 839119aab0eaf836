"""Inquiry: all probes of one part, and the evidence of running services."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from audit.evidence import collect
from audit.evidence.collect import read_aggregator_evidence, read_client_evidence
from audit.evidence.evidence import PartEvidence, ProbeResult, Role, make_result, utc_now
from audit.probes import bodies, gate, network, own_gate, uploads
from audit.probes import part as standing
from audit.probes.meeting import SystemPart
from audit.probes.network import OutsideHost, Surroundings
from audit.probes.part import PartLocation
from shared.errors import SettingsError
from shared.protocol.signing.enrolment import read_own_key
from shared.protocol.signing.requests import Signatory
from shared.web.address import require_url
from shared.web.outgoing import OutgoingTls

CALL_SECONDS = 60.0  # a busy machine answers late


@dataclass(frozen=True)
class Services:
    """URLs of the services, and files with the secrets to ask them with.

    signing_key: the client's own. token, key: of the aggregator's operator, and of the client's.
    """

    aggregator: str
    client: str
    signing_key: Path | None
    token: Path | None
    key: Path | None = None
    tls: OutgoingTls = field(default_factory=OutgoingTls)


def ignore_announcement(evidence: PartEvidence) -> None:
    """Does nothing, where nothing is recorded."""
    del evidence


async def skip_waiting() -> None:
    """Returns at once, for parts that are probed one after another."""


@dataclass(frozen=True)
class Inquiry:
    """Inputs of all probes of one part.

    parts: all others that are known. recorded: whether its ledger or record is part of the evidence. announce: called
    with what is about to be sent, before it is. settled: returns once the others have sent what they have to send, so
    that the aggregator's record has it.
    """

    own: SystemPart
    parts: Mapping[str, SystemPart]
    outside: OutsideHost
    published: tuple[int, ...]
    standing: PartLocation
    services: Services
    recorded: bool
    announce: Callable[[PartEvidence], None] = ignore_announcement
    settled: Callable[[], Awaitable[None]] = skip_waiting


async def run_inquiry(inquiry: Inquiry) -> PartEvidence:
    """Runs every probe of the part's role, and collects its evidence."""
    probes = await network.probe_network(_make_surroundings(inquiry))
    if inquiry.own.role != "gateway" or inquiry.standing.expected is not None:
        probes += standing.probe_location(inquiry.standing)
    if inquiry.own.role == "gateway":
        return PartEvidence(name=inquiry.own.name, role="gateway", taken_at=utc_now(), probes=tuple(probes))
    evidence = await (_client_evidence(inquiry) if inquiry.own.role == "client" else _aggregator_evidence(inquiry))
    return evidence.model_copy(update={"probes": (*probes, *evidence.probes)})


def _make_surroundings(inquiry: Inquiry) -> Surroundings:
    hosts = network.machine_addresses(network.own_interfaces())
    services = inquiry.services
    urls: dict[Role, str] = {"aggregator": services.aggregator, "client": services.client}
    by_tls = {role: services.tls.context for role, url in urls.items() if url.startswith("https:")}
    return Surroundings(inquiry.own, inquiry.parts, hosts, inquiry.published, inquiry.outside, by_tls)


async def _aggregator_evidence(inquiry: Inquiry) -> PartEvidence:
    if not inquiry.recorded:
        return PartEvidence(name=inquiry.own.name, role="aggregator", taken_at=utc_now())
    if inquiry.services.token is None:
        raise SettingsError("expected --operator-token-file, to read the aggregator's record")
    await inquiry.settled()
    services, bearer = inquiry.services, read_token(inquiry.services.token)
    async with open_http(services.aggregator, bearer, tls=services.tls) as http:
        return await collect.read_aggregator_evidence(http, inquiry.own.name)


async def _client_evidence(inquiry: Inquiry) -> PartEvidence:
    """Collects the evidence of a client.

    Its uploads need its ledger too, which names the round that holds its update.
    """
    name, services = inquiry.own.name, inquiry.services
    async with open_http(services.aggregator, tls=services.tls) as aggregator:
        control = await _probe_aggregator(aggregator)
        if services.signing_key is None and not inquiry.recorded:
            return PartEvidence(name=name, role="client", taken_at=utc_now(), probes=(control,))
        key = None if services.key is None else read_token(services.key)
        async with open_http(services.client, key, tls=services.tls) as client:
            evidence = await collect.read_client_evidence(client, name)
            gated = await own_gate.probe_own_gate(client, inquiry.standing)
        if services.signing_key is None:
            return evidence.model_copy(update={"probes": (control, *gated)})
        who = _make_intruder(inquiry, evidence, services.signing_key)
        place = uploads.latest_place(evidence)
        inquiry.announce(evidence.model_copy(update={"sent": uploads.planned_sendings(who, place)}))
        tried, sent = await uploads.probe_uploads(aggregator, who, place)
    probes = (control, *tried, *await gate.probe_gate(who), *gated)
    return evidence.model_copy(update={"probes": probes, "sent": tuple(sent)})


def _make_intruder(inquiry: Inquiry, evidence: PartEvidence, key: Path) -> uploads.Intruder:
    names = sorted(part.name for part in inquiry.parts.values() if part.role == "client")
    assert evidence.declaration is not None
    who = Signatory(evidence.name, read_own_key(evidence.name, Path(), key))
    return uploads.Intruder(who, names[0] if names else bodies.ANOTHER, evidence.declaration)


async def _probe_aggregator(http: httpx.AsyncClient) -> ProbeResult:
    """Checks, as a control, that a client reaches the aggregator."""
    try:
        observed = str((await http.get("/health/live")).status_code)
    except httpx.TransportError as error:
        observed = type(error).__name__
    name = http.base_url.host
    return make_result("control: the aggregator", name, "200", observed, held=observed == "200")


def open_http(url: str, bearer: str | None = None, *, tls: OutgoingTls) -> httpx.AsyncClient:
    """Makes an HTTP client for one service, without gate and environment proxies."""
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    return httpx.AsyncClient(
        base_url=require_url(url), headers=headers, timeout=CALL_SECONDS, trust_env=False, verify=tls.context
    )


def read_token(path: Path) -> str:
    """Reads an operator's secret; raises SettingsError if the file is unreadable."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"operator token: expected a readable text file ({error})") from None


@dataclass(frozen=True)
class ServicePlaces:
    """URLs of all services, and files with the secrets of their operators."""

    aggregator: str
    token: Path
    clients: Mapping[str, str]
    keys: Mapping[str, Path]
    tls: OutgoingTls


async def read_services(places: ServicePlaces, probed: Sequence[PartEvidence] = ()) -> tuple[PartEvidence, ...]:
    """Reads the evidence of running services, the clients' ledgers first.

    What they call accepted by then, the aggregator has on record.
    """
    parts = []
    for name, place in places.clients.items():
        key = read_token(places.keys[name]) if name in places.keys else None
        async with open_http(place, key, tls=places.tls) as http:
            parts.append(await read_client_evidence(http, name))
    async with open_http(places.aggregator, read_token(places.token), tls=places.tls) as http:
        parts.append(await read_aggregator_evidence(http, "aggregator"))
    return _with_probes(parts, probed)


def _with_probes(parts: Sequence[PartEvidence], probed: Sequence[PartEvidence]) -> tuple[PartEvidence, ...]:
    """Adds the probes of earlier evidence to each part; adds parts without services."""
    earlier, names = {part.name: part for part in probed}, {part.name for part in parts}
    updated = (_add_probes(part, earlier[part.name]) if part.name in earlier else part for part in parts)
    return (*updated, *(part for part in probed if part.name not in names))


def _add_probes(part: PartEvidence, probed: PartEvidence) -> PartEvidence:
    """Returns the part with the results of earlier probes, and their time."""
    probed_at = probed.probed_at or probed.taken_at
    return part.model_copy(update={"probes": probed.probes, "sent": probed.sent, "probed_at": probed_at})
