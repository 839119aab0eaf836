"""The messages of a secure round -> checked, durable, taken in; and what each client may have of the others'."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar

from aggregator_service.rounds import transitions
from aggregator_service.rounds.conductor import Clock, Conductor
from aggregator_service.rounds.run import Run
from aggregator_service.rounds.uploads import Address, spool_body
from aggregator_service.storage.blobs import Blob
from aggregator_service.storage.keys import RegisteredKeys
from aggregator_service.storage.rows import Quarantine, Receipt, StoredUpdate
from aggregator_service.storage.runs import add_message
from aggregator_service.storage.updates import add_update, stored_update
from aggregator_service.threads import off_loop
from shared.errors import ConflictError, ForbiddenError, NotFoundError, ProtocolError, RoundClosedError
from shared.method.declaration import Declaration
from shared.method.ranges import require_within
from shared.protocol.lengths import require_head
from shared.protocol.masked_wire import open_masked
from shared.protocol.secure import server
from shared.protocol.secure.messages import (
    Consents,
    Delivery,
    FromClient,
    MaskedHeader,
    PublicKeys,
    Roster,
    ShareCheck,
    Sharers,
    UnmaskRequest,
)
from shared.protocol.secure.server import PHASES, Phase, Relayed, SecureRound
from shared.protocol.secure.verification import verify
from shared.protocol.signing.keys import raw_hex

T = TypeVar("T")
Stage = tuple[int, Phase | None]


class Intake:
    """Takes the messages of the conductor's run in."""

    def __init__(self, conductor: Conductor, declaration: Declaration, keys: RegisteredKeys, *, clock: Clock) -> None:
        self._conductor, self._declaration, self._keys, self._clock = conductor, declaration, keys, clock
        self._archive = conductor.archive

    async def relay_message(self, address: Address, message: Relayed) -> None:
        """Keep a verified message for the others. The same one again changes nothing.

        What it was held against may be over by the time that it could be taken in, if somebody else has closed the
        phase meanwhile: then it is held against what is there now.
        """
        require_own(address, message)
        while not await self._take_verified(address, message, await self._verify_message(address, message)):
            pass

    async def _verify_message(self, address: Address, message: Relayed) -> Stage:
        """Where the run stood when the message was held against it. ProtocolError for a message whose signature,
        commitments, shares or proofs do not hold. Off the loop: of a thousand clients it takes a second."""
        run = await self._conductor.find_run(address.run)
        if isinstance(message, PublicKeys):
            self._require_registered(message)
        if run.exchange is not None and (run.exchange.terms.run, run.exchange.terms.round) == (run.name, address.round):
            await off_loop(verify, run.exchange, message)
        return _stage(run)

    async def _take_verified(self, address: Address, message: Relayed, verified: Stage) -> bool:
        """False, and nothing has changed, where the run stands elsewhere than the message was held against.

        A proven complaint shuts the dealer out, before it is taken in: a crash in between is followed by the same.
        """
        async with self._conductor.lock:
            run = await self._conductor.find_run(address.run)
            if _stage(run) != verified:
                return False
            after = transitions.take_message(run, message, now=self._clock())
            if isinstance(message, ShareCheck) and after is not run:
                await self._shut_out_dealers(run, message)
                after = transitions.take_message(
                    await self._conductor.find_run(address.run), message, now=self._clock()
                )
            await self._conductor.commit_transition(
                after, partial(add_message, phase=server.PHASE_OF[type(message)], message=message)
            )
            return True

    def _require_registered(self, message: PublicKeys) -> None:
        """ProtocolError for an identity that is not the key that this very request was signed with."""
        key = self._keys.registered_key(message.client)
        if key is None or raw_hex(key) != message.identity:
            raise ProtocolError("expected the identity that this client is registered with, got another key")

    async def _shut_out_dealers(self, run: Run, message: ShareCheck) -> None:
        """Quarantine whoever has sealed shares that are none. The caller holds the lock."""
        now, found = self._clock(), sorted(set(message.complaints) - run.quarantined.keys())
        why = f"what it has sealed for {message.client} are not the shares that it has committed to"
        if found:
            await self._conductor.quarantine_clients(
                [Quarantine(dealer, "shares", why, now, run.name, run.round) for dealer in found]
            )

    async def receive_update(self, address: Address, body: AsyncIterator[bytes]) -> tuple[Receipt, bool]:
        """The receipt of a masked vector, and whether it is new."""
        await self._require_place(address)
        look = partial(read_masked_header, self._declaration, address)
        return await spool_body(self._archive, body, look, partial(self._take_vector, address))

    async def _require_place(self, address: Address) -> None:
        """Refuse before the body is read what could not be accepted after it."""
        run = await self._conductor.find_run(address.run)
        transitions.require_taken(run, address.client)
        if await self._stored_receipt(address) is None:
            transitions.require_open(run, address.round, now=self._clock())
            if run.exchange is None or run.exchange.phase != "masked":
                raise RoundClosedError(f"round {run.round}: expected to be in phase masked, it is not")
            if address.client not in run.exchange.missing:
                raise NotFoundError(f"client {address.client!r} has not shared in round {run.round}")

    async def _stored_receipt(self, address: Address) -> Receipt | None:
        find = partial(stored_update, number=address.round, client=address.client)
        update = await off_loop(find, self._archive.database, address.run)
        return None if update is None else update.receipt

    async def _take_vector(self, address: Address, blob: Blob, header: MaskedHeader) -> tuple[Receipt, bool]:
        async with self._conductor.lock:
            run = await self._conductor.find_run(address.run)
            held = await self._stored_receipt(address)
            receipt = Receipt(address.run, address.round, address.client, blob.digest, blob.size, self._clock())
            after = transitions.accept_update(run, receipt, earlier=held, header=header)
            if held is not None:
                return held, False
            require_within(self._archive.strategy(run.request.method).ranges, header.scalars)
            update = StoredUpdate(receipt, header.scalars, blob.name)
            writes = partial(add_update, stored=update), partial(add_message, phase="masked", message=header)
            await self._conductor.commit_transition(after, *writes)
            return receipt, True

    async def roster(self, address: Address, *, wait: float) -> Roster | None:
        """Everybody's public keys, once no more of them are taken."""
        return await self._result_after("keys", address, wait, server.roster)

    async def delivery(self, address: Address, *, wait: float) -> Delivery | None:
        """What the others have sealed for this client."""
        return await self._result_after("shares", address, wait, lambda state: server.delivery(state, address.client))

    async def sharers(self, address: Address, *, wait: float) -> Sharers | None:
        """Who masks with whom, and why others do not."""
        return await self._result_after("checks", address, wait, server.sharers)

    async def consents(self, address: Address, *, wait: float) -> Consents | None:
        """The survivors' signatures under the two lists."""
        return await self._result_after("consents", address, wait, server.consents)

    async def request(self, address: Address, *, wait: float) -> UnmaskRequest | None:
        """Who is in the sum, and who is not."""
        return await self._result_after("masked", address, wait, server.request)

    async def _result_after(
        self, phase: Phase, address: Address, wait: float, made: Callable[[SecureRound], T]
    ) -> T | None:
        """What a phase has led to, for one who took part in it; None if it is not closed within the wait.

        RoundClosedError where the round is over, NotFoundError for whoever did not take part.
        """
        await self._conductor.wait_until(lambda: self._has_closed(phase, address), wait)
        state = _current_exchange(await self._conductor.find_run(address.run), address)
        if address.client not in state.collected(phase):
            raise NotFoundError(f"client {address.client!r} has no part in round {address.round} since phase {phase}")
        return made(state) if _is_closed(state, phase) else None

    def _has_closed(self, phase: Phase, address: Address) -> bool:
        """Is there nothing more to wait for?"""
        run = self._conductor.run
        if run is None or (run.name, run.round) != (address.run, address.round) or run.phase != "open":
            return True
        return run.exchange is None or _is_closed(run.exchange, phase)


def _stage(run: Run) -> Stage:
    """What a message's verification depends on: the round, and its phase."""
    return run.round, None if run.exchange is None else run.exchange.phase


def _is_closed(state: SecureRound, phase: Phase) -> bool:
    return PHASES.index(state.phase) > PHASES.index(phase)


def _current_exchange(run: Run, address: Address) -> SecureRound:
    if run.phase == "failed":
        raise ConflictError(f"{run.name} has failed: {run.reason}")
    if run.exchange is None or run.round != address.round or run.phase not in ("open", "aggregated"):
        raise RoundClosedError(f"expected round {run.round} ({run.phase}) of {run.name}, got round {address.round}")
    return run.exchange


def require_own(address: Address, message: FromClient) -> None:
    """ForbiddenError for a message in somebody else's name, ProtocolError for one of another round than its path's."""
    if message.client != address.client:
        raise ForbiddenError(f"expected your own name, {address.client!r}, got {message.client!r}")
    if (message.run, message.round) != (address.run, address.round):
        raise ProtocolError(f"expected a message of round {address.round} of {address.run}, got one of another")


def read_masked_header(declaration: Declaration, address: Address, path: str) -> MaskedHeader:
    """The header of a spooled body that is exactly what this client may send in this round."""
    require_head(declaration, path)
    header = open_masked(declaration, path).header
    require_own(address, header)
    return header
