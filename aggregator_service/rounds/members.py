"""Members of the federation: joining, last calls and quarantines."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from aggregator_service.process import Clock, run_in_worker
from aggregator_service.rounds import secure_run, transitions
from aggregator_service.rounds.round_loop import RoundLoop
from aggregator_service.rounds.run import Run
from aggregator_service.rounds.uploads import Address
from aggregator_service.storage.clients import (
    active_quarantines,
    count_refusal,
    joined_clients,
    lift_quarantine,
    refusal_counts,
)
from aggregator_service.storage.database import Database
from aggregator_service.storage.records import JoinedClient, Quarantine, instant
from shared.errors import AuthenticationError, ConflictError, ForbiddenError, NotFoundError, ProtocolError
from shared.method.declaration import Declaration, describe_difference
from shared.protocol.gate import warn_of_few_clients
from shared.protocol.schemas import Cause, JoinIn, MemberOut, QuarantineOut


class LastCalls:
    """Times of the last calls of authenticated clients; a restart clears them.

    Only clients with a valid signature are kept, so that it grows no further than the registry.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, float] = {}

    def record_call(self, name: str) -> None:
        """Records a call of this client, or an answer to it, at the current time."""
        self._seen[name] = self._clock()

    def seen_times(self) -> dict[str, float]:
        """Returns seconds since the epoch by client, since the service started."""
        return dict(self._seen)


class Members:
    """Joined clients by name."""

    def __init__(self, clients: dict[str, JoinedClient]) -> None:
        self._by_name = dict(clients)

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, JoinedClient) and self._by_name.get(client.name) == client

    def __getitem__(self, name: str) -> JoinedClient:
        return self._by_name[name]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._by_name)

    @property
    def warnings(self) -> tuple[str, ...]:
        return warn_of_few_clients(len(self))

    def has(self, name: str) -> bool:
        return name in self._by_name

    def add_client(self, client: JoinedClient) -> None:
        self._by_name[client.name] = client

    async def take_joined(self, database: Database, name: str | None = None) -> None:
        """Takes the clients that have joined by other workers.

        name: takes this one alone, where it is unknown here. Does nothing for one process alone.
        """
        if database.workers is not None and (name is None or name not in self._by_name):
            for client in (await run_in_worker(joined_clients, database, name)).values():
                self.add_client(client)

    def require_joined(self, name: str) -> None:
        """Raises AuthenticationError for a client that has not joined."""
        if name not in self._by_name:
            raise AuthenticationError(f"expected a client that has joined, {name!r} has not: join first")

    def admit_client(self, message: JoinIn, signer: str, *, now: float) -> JoinedClient:
        """Returns the client after its join; raises ForbiddenError if another client signed it."""
        if message.client != signer:
            raise ForbiddenError(f"expected your own name, {signer!r}, got {message.client!r}")
        known = self._by_name.get(signer)
        return JoinedClient(signer, message.counts, now) if known is None else replace(known, counts=message.counts)


def require_same_declaration(expected: Declaration, observed: Declaration) -> None:
    """Raises ProtocolError unless a client declares exactly what this federation exchanges."""
    if (difference := describe_difference(expected, observed)) is not None:
        consent = "; to agree to the sums: the silo's `lpsfed join` again, with --accept sums"
        raise ProtocolError(difference + (consent if expected.sums.keys() - observed.sums.keys() else ""))


class Quarantines:
    """Quarantines of one federation.

    limit: refused updates in one run after which a client is quarantined; 0: no limit.
    """

    def __init__(self, round_loop: RoundLoop, members: Members, *, limit: int, clock: Clock) -> None:
        self._round_loop, self._members = round_loop, members
        self._database = round_loop.archive.database
        self._limit, self._clock = limit, clock

    async def impose_quarantine(self, client: str, reason: str) -> MemberOut:
        """Quarantines a client for the operator.

        Raises NotFoundError for a client that has not joined, ConflictError if it is quarantined already.
        """
        await self._require_member(client)
        async with self._round_loop.lock:
            if client in await run_in_worker(active_quarantines, self._database):
                raise ConflictError(f"expected a client that is not quarantined, {client!r} is")
            await self._round_loop.quarantine_clients([Quarantine(client, "operator", reason, self._clock())])
        return await self._member_row(client)

    async def lift_quarantine(self, client: str) -> MemberOut:
        """Lifts the quarantine of a client.

        Raises NotFoundError for a client that has not joined, ConflictError if it is not quarantined.
        """
        await self._require_member(client)
        async with self._round_loop.lock:
            if client not in await run_in_worker(active_quarantines, self._database):
                raise ConflictError(f"expected a client that is quarantined, {client!r} is not")
            run, now = self._round_loop.run, self._clock()
            after = None if run is None else transitions.readmit_client(run, client, now=now)
            await self._round_loop.commit_decision(after, partial(lift_quarantine, client=client, now=now))
        return await self._member_row(client)

    async def count_refused_update(self, place: Address) -> None:
        """Counts a refused update; too many in one run quarantine the client.

        It counts where the current round expects one. Elsewhere none could be accepted anyway, so that an audit may
        send as many as it likes.
        """
        async with self._round_loop.lock:
            run = self._round_loop.run
            if self._limit == 0 or run is None or not _is_expected(run, place):
                return
            count = await run_in_worker(count_refusal, self._database, run.name, client=place.client)
            if count >= self._limit:
                why = f"{count} of its updates did not match the declaration"
                entry = Quarantine(place.client, "refusals", why, self._clock(), run.name, run.round)
                await self._round_loop.quarantine_clients([entry])

    async def quarantine_causes(self) -> dict[str, Cause]:
        """Returns the cause of each current quarantine by client."""
        held = await run_in_worker(active_quarantines, self._database)
        return {client: entry.cause for client, entry in held.items()}

    async def members(self) -> list[MemberOut]:
        """Returns all clients by name, as the operator sees them."""
        await self._members.take_joined(self._database)
        return await run_in_worker(self._member_rows, sorted(self._members.names))

    async def _member_row(self, client: str) -> MemberOut:
        [found] = await run_in_worker(self._member_rows, [client])
        return found

    def _member_rows(self, names: list[str]) -> list[MemberOut]:
        run, held = self._round_loop.run, active_quarantines(self._database)
        refused = {} if run is None else refusal_counts(self._database, run.name)
        return [_member_out(self._members[name], refused.get(name, 0), held.get(name)) for name in names]

    async def _require_member(self, client: str) -> None:
        await self._members.take_joined(self._database, client)
        if not self._members.has(client):
            raise NotFoundError(f"there is no client {client!r}")


def _is_expected(run: Run, place: Address) -> bool:
    """Tells whether the current round expects something of this client."""
    if run.phase != "open" or (run.name, run.round) != (place.run, place.round):
        return False
    return place.client in (
        run.missing if run.exchange is None else secure_run.expected_clients(run.exchange, run.awaited)
    )


def _member_out(client: JoinedClient, refused: int, held: Quarantine | None) -> MemberOut:
    shown = None
    if held is not None:
        shown = QuarantineOut(
            cause=held.cause, reason=held.reason, run=held.run, round=held.round, since=instant(held.since)
        )
    return MemberOut(client=client.name, joined_at=instant(client.joined_at), refused=refused, quarantine=shown)
