"""Asks the aggregator for its present run, through the gate.

A trainer at work and one that waits both do it by this module.
No import of this module loads torch, polars, scipy or pandas.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from client_service.boundary.aggregator_api import Aggregator, connect
from client_service.boundary.gate import Boundary
from client_service.boundary.ledger_heads import HeadedLedger
from client_service.metrics import ClientMetrics
from client_service.runtime.logs import LOGGER
from client_service.secure_rounds.members import KnownMembers
from client_service.settings import ClientSettings
from shared.errors import FederationError
from shared.method.declaration import Counts
from shared.protocol.schemas import ENDED, JoinOut, RunOut
from shared.protocol.signing.events import CHANGES, EVENT_SECONDS
from shared.protocol.signing.keys import PrivateKey
from shared.web.outgoing import OutgoingTls, ProxyTransport
from shared.web.tls import TlsIdentity

Permit = Callable[[str | None], Mapping[str, Any]]


def make_transport(settings: ClientSettings, identities: dict[str, TlsIdentity]) -> httpx.AsyncBaseTransport:
    """Makes the HTTP transport to the aggregator.

    The certificate that is shown there, where there is one, joins `identities`.
    """
    tls = OutgoingTls(settings.aggregator_authority, settings.tls_client_certificate, settings.tls_client_key)
    identities.update(tls.identities)
    proxy = settings.proxy()
    if proxy is not None:
        return ProxyTransport(tls.context, proxy)
    return httpx.AsyncHTTPTransport(verify=tls.context, trust_env=False)


@asynccontextmanager
async def connect_aggregator(
    settings: ClientSettings,
    ledger: HeadedLedger,
    key: PrivateKey,
    members: KnownMembers | None,
    outside: httpx.AsyncBaseTransport,
    *,
    permit: Permit | None = None,
    permit_basis: Callable[[], Mapping[str, Any]] | None = None,
) -> AsyncIterator[Aggregator]:
    """Connects to the aggregator through the silo's gate.

    permit, permit_basis: see `Boundary`.
    """
    policy = settings.policy
    boundary = Boundary(
        settings.name,
        httpx.URL(settings.aggregator_url),
        settings.declaration(),
        policy.counts,
        policy.max_upload_bytes,
        permit,
        permit_basis,
    )
    trusted_key = None if members is None else members.aggregator
    async with connect(boundary, ledger, key, limits=settings.limits(), inner=outside, trusted_key=trusted_key) as link:
        yield link


@dataclass(frozen=True)
class AgentStatus:
    """Status of the agent, in words that the silo's own API shows."""

    phase: str = "starting"
    run: str | None = None
    round: int = 0
    rounds: int = 0
    shared_digest: str | None = None
    problem: str | None = None
    warnings: tuple[str, ...] = ()


class RunPoll:
    """Wait for the aggregator's present run, by a held stream or by long polls.

    joined: has the aggregator been told what this client may send? sequence: the last state that this client has
    followed; None: the next answer comes at once. ended_run: the run that is over and asks nothing more of this client.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        settings: ClientSettings,
        metrics: ClientMetrics,
        *,
        joined: bool = False,
        ended_run: str | None = None,
    ) -> None:
        self._aggregator, self._metrics = aggregator, metrics
        self._declaration = settings.declaration()
        self._wait = max(settings.wait_seconds, settings.poll_seconds, EVENT_SECONDS)  # shorter ones would keep it busy
        self.joined, self.ended_run = joined, ended_run
        self.sequence: int | None = None
        self._known: RunOut | None = None  # the state of that sequence
        metrics.watch_stream(lambda: self.has_stream)

    @property
    def has_stream(self) -> bool:
        """Whether changes are told by a stream; otherwise the client polls."""
        return self._aggregator.changes.sequence is not None

    async def join(self, counts: Counts | None) -> JoinOut:
        """Joins the federation: sends the declaration, and counts where the policy shares them."""
        answer = await self._aggregator.join(self._declaration, counts)
        LOGGER.info("joined", clients=answer.clients)
        self.joined = True
        return answer

    async def fetch(self) -> RunOut:
        """Fetches the present run.

        Waits while the run is still as `record_done` has recorded it, at most for the client's `wait_seconds`.
        """
        changes = self._aggregator.changes
        if self.sequence is None or self._known is None or not await changes.is_held(self.sequence):
            return await self._aggregator.fetch_run(self.sequence, self._wait)
        event = await changes.wait_for_change(self.sequence, self._wait)
        if event is None:
            return self._known
        await self._aggregator.schedule.wait_turn(CHANGES)
        return event.state or await self._aggregator.fetch_run(None, self._wait)

    def is_idle(self, state: RunOut) -> bool:
        """Tells whether the present run needs no work: there is none, or it is over."""
        return state.run is None or (state.run == self.ended_run and state.phase in ENDED)

    def record_done(self, state: RunOut) -> None:
        """Notes that this client has done what this state asks of it."""
        self.ended_run = state.run if state.phase in ENDED else None
        self.sequence, self._known = state.sequence, state
        self._aggregator.schedule.record_success()

    def record_failure(self, error: FederationError) -> None:
        """Notes an error; the next call waits: see `RetrySchedule`."""
        LOGGER.warning("held_up", code=error.code, reason=str(error))
        self._metrics.held_up.labels(error.code).inc()
        self.sequence = None  # so that the next poll also returns changes that this client has missed
        self._aggregator.schedule.record_failure(error)
