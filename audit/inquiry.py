"""Which part is being probed, and from where -> all its probes, and what it shows of itself, as evidence."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from audit import collect
from audit.evidence import Evidence, Probe, now
from audit.probes import addresses, bodies, files, gate, network, uploads
from audit.probes.meeting import Part
from audit.probes.network import Outside, Surroundings
from client_service.boundary.secret import own_secret
from shared.errors import SettingsError

CALL_SECONDS = 20.0


@dataclass(frozen=True)
class Mounts:
    """Where to look for files, and which of them are this part's own."""

    root: Path
    own: tuple[Path, ...]


@dataclass(frozen=True)
class Services:
    """Where the services answer, and the files with the secrets to ask them with."""

    aggregator: str
    client: str
    secret: Path | None
    token: Path | None


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
    mounts: Mounts
    services: Services
    recorded: bool
    announce: Callable[[Evidence], None] = nobody_to_tell
    settled: Callable[[], Awaitable[None]] = nothing_to_wait_for


async def inquire(inquiry: Inquiry) -> Evidence:
    """Every probe of the part's role, and then its evidence."""
    probes = await network.probe(_surroundings(inquiry))
    if inquiry.own.role == "gateway":  # it has no mounts of its own to look at
        return Evidence(name=inquiry.own.name, role="gateway", taken_at=now(), probes=tuple(probes))
    probes += files.probe(inquiry.mounts.root, inquiry.mounts.own)
    found = await (_client(inquiry) if inquiry.own.role == "client" else _aggregator(inquiry))
    return found.model_copy(update={"probes": (*probes, *found.probes)})


def _surroundings(inquiry: Inquiry) -> Surroundings:
    hosts = addresses.hosts(addresses.own())
    return Surroundings(inquiry.own, inquiry.parts, hosts, inquiry.published, inquiry.outside)


async def _aggregator(inquiry: Inquiry) -> Evidence:
    if not inquiry.recorded:
        return Evidence(name=inquiry.own.name, role="aggregator", taken_at=now())
    if inquiry.services.token is None:
        raise SettingsError("expected --operator-token-file, to read the aggregator's record")
    await inquiry.settled()
    async with opened(inquiry.services.aggregator, token(inquiry.services.token)) as http:
        return await collect.of_aggregator(http, inquiry.own.name)


async def _client(inquiry: Inquiry) -> Evidence:
    """A client's ledger is needed for its uploads too: it tells which round has its update."""
    name, services = inquiry.own.name, inquiry.services
    async with opened(services.aggregator) as aggregator:
        control = await _answers(aggregator)
        if services.secret is None and not inquiry.recorded:
            return Evidence(name=name, role="client", taken_at=now(), probes=(control,))
        async with opened(services.client) as client:
            found = await collect.of_client(client, name)
        if services.secret is None:
            return found.model_copy(update={"probes": (control,)})
        who = _intruder(inquiry, found, services.secret)
        place = uploads.latest_place(found)
        inquiry.announce(found.model_copy(update={"sent": uploads.planned(who, place)}))
        tried, sent = await uploads.probe(aggregator, who, place)
    probes = (control, *tried, *await gate.probe(who))
    return found.model_copy(update={"probes": probes, "sent": tuple(sent)})


def _intruder(inquiry: Inquiry, found: Evidence, secret: Path) -> uploads.Intruder:
    names = sorted(part.name for part in inquiry.parts.values() if part.role == "client")
    assert found.declaration is not None
    return uploads.Intruder(
        found.name, own_secret(Path(), secret), names[0] if names else bodies.ANOTHER, found.declaration
    )


async def _answers(http: httpx.AsyncClient) -> Probe:
    """The control: whom a client must reach, it reaches."""
    try:
        observed = str((await http.get("/health/live")).status_code)
    except httpx.TransportError as error:
        observed = type(error).__name__
    name = http.base_url.host
    return Probe(kind="control: the aggregator", name=name, expected="200", observed=observed, held=observed == "200")


def opened(url: str, bearer: str | None = None) -> httpx.AsyncClient:
    """A way to ask a service, past the gate and past every proxy of the environment."""
    headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=CALL_SECONDS, trust_env=False)


def token(path: Path) -> str:
    """The operator's secret."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"operator token: expected a readable text file ({error})") from None
