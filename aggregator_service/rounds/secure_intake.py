"""Intake of secure messages: verification, storage, and the answers that clients get from each phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from aggregator_service.process import Clock, run_in_worker
from aggregator_service.rounds import transitions
from aggregator_service.rounds.round_loop import RoundLoop
from aggregator_service.rounds.run import Run
from aggregator_service.rounds.uploads import Address, require_own_message
from aggregator_service.signatures import RegisteredKeys
from aggregator_service.storage.records import Quarantine
from aggregator_service.storage.run_store import Write, add_message
from shared.errors import FederationError, NotFoundError, ProtocolError, RoundClosedError
from shared.message import Message
from shared.protocol.secure import server
from shared.protocol.secure.messages import PublicKeys, ShareCheck
from shared.protocol.secure.server import PHASES, Phase, RelayedMessage, SecureRound
from shared.protocol.secure.verification import verify_message
from shared.protocol.signing.keys import raw_hex

Stage = tuple[int, Phase | None]
RESULTS: Mapping[Phase, Callable[[SecureRound, str], Message]] = {
    "keys": lambda state, _: server.make_roster(state),
    "shares": server.make_delivery,
    "checks": server.make_sharers,
    "masked": lambda state, _: server.make_unmask_request(state),
    "consents": server.make_consents,
}
"""Results of each closed phase for one client.

keys: all public keys. shares: those sealed for it. checks: clients that mask with each other, and why others do not.
masked: members of the sum, and the others. consents: the survivors' signatures under these two lists."""


@dataclass(eq=False)
class _WaitingMessage:
    """Verified message that waits to be stored, and what became of it."""

    address: Address
    message: RelayedMessage
    verified: Stage
    settled: bool = False
    stored: bool = False
    error: FederationError | None = None


class MessageIntake:
    """Intake of secure messages: verifies and stores the messages of the current run."""

    def __init__(self, round_loop: RoundLoop, keys: RegisteredKeys, *, clock: Clock) -> None:
        self._round_loop, self._keys, self._clock = round_loop, keys, clock
        self._waiting: list[_WaitingMessage] = []

    async def relay_message(self, address: Address, message: RelayedMessage) -> None:
        """Stores a verified message for the other clients; a repeat changes nothing.

        Another client may close the phase between verification and storage: then the message is verified again.
        """
        require_own_message(address, message)
        while not await self._store_verified(address, message, await self._verify_message(address, message)):
            pass

    async def _verify_message(self, address: Address, message: RelayedMessage) -> Stage:
        """Verifies a message and returns the run's stage at that time.

        Raises ProtocolError if the signature, commitments, shares or proofs do not hold. Runs in a worker thread:
        with a thousand clients it takes a second.
        """
        run = await self._round_loop.find_run(address.run)
        if isinstance(message, PublicKeys):
            self._require_registered(message)
        if run.exchange is not None and (run.exchange.terms.run, run.exchange.terms.round) == (run.name, address.round):
            await run_in_worker(verify_message, run.exchange, message)
        return _stage(run)

    async def _store_verified(self, address: Address, message: RelayedMessage, verified: Stage) -> bool:
        """Stores a verified message; False if the run's stage has changed since.

        Messages that wait for the lock are stored in one transaction, which costs as much as one message's.
        """
        if isinstance(message, ShareCheck) and message.complaints:
            return await self._store_complaints(address, message, verified)
        own = _WaitingMessage(address, message, verified)
        self._waiting.append(own)
        async with self._round_loop.lock:
            if not own.settled:
                together, self._waiting = self._waiting, []
                try:
                    await self._store_together(together)
                finally:  # if this caller is cut off, the others look at their messages anew
                    for one in together:
                        one.settled = True
        if own.error is not None:
            raise own.error
        return own.stored

    async def _store_together(self, messages: Sequence[_WaitingMessage]) -> None:
        """Stores those messages that the run accepts one after another.

        The caller holds the lock.
        """
        current, accepted, writes = self._round_loop.run, list[_WaitingMessage](), list[Write]()
        for one in messages:
            try:
                run = await self._round_loop.find_run(one.address.run)
                before = current if current is not None and run.name == current.name else run
                if _stage(before) != one.verified:
                    continue
                after = transitions.accept_message(before, one.message, now=self._clock())
            except FederationError as error:
                one.error = error
                continue
            accepted.append(one)
            if after is not before:
                current = after
                writes.append(partial(add_message, phase=server.PHASE_OF[type(one.message)], message=one.message))
        try:
            if current is not None and writes:
                await self._round_loop.commit_transition(current, *writes)
        except FederationError as error:
            for one in accepted:
                one.error = error
        for one in accepted:
            one.stored = one.error is None

    async def _store_complaints(self, address: Address, message: ShareCheck, verified: Stage) -> bool:
        """Stores a message with proven complaints; False if the run's stage has changed since.

        The dealers are quarantined first: a crash in between leads to the same.
        """
        async with self._round_loop.lock:
            run = await self._round_loop.find_run(address.run)
            if _stage(run) != verified:
                return False
            after = transitions.accept_message(run, message, now=self._clock())
            if after is not run:
                await self._quarantine_dealers(run, message)
                after = transitions.accept_message(
                    await self._round_loop.find_run(address.run), message, now=self._clock()
                )
            await self._round_loop.commit_transition(after, partial(add_message, phase="checks", message=message))
            return True

    def _require_registered(self, message: PublicKeys) -> None:
        """Raises ProtocolError for an identity other than the key that signed this request."""
        key = self._keys.registered_key(message.client)
        if key is None or raw_hex(key) != message.identity:
            raise ProtocolError("expected the identity that this client is registered with, got another key")

    async def _quarantine_dealers(self, run: Run, message: ShareCheck) -> None:
        """Quarantines the clients that sealed invalid shares.

        The caller holds the lock.
        """
        now, found = self._clock(), sorted(set(message.complaints) - run.quarantined.keys())
        why = f"the shares that it sealed for {message.client} do not match its commitments"
        if found:
            await self._round_loop.quarantine_clients(
                [Quarantine(dealer, "shares", why, now, run.name, run.round) for dealer in found]
            )

    async def phase_result(self, phase: Phase, address: Address, *, wait: float) -> Message | None:
        """Returns the result of a phase for a participant.

        None if not closed within the wait. Raises RoundClosedError if the round is over, NotFoundError for a
        client that did not take part.
        """
        await self._round_loop.wait_until(lambda: self._has_closed(phase, address), wait)
        state = _current_exchange(await self._round_loop.find_run(address.run), address)
        if address.client not in state.collected(phase):
            raise NotFoundError(f"client {address.client!r} has no part in round {address.round} since phase {phase}")
        return RESULTS[phase](state, address.client) if _is_closed(state, phase) else None

    def _has_closed(self, phase: Phase, address: Address) -> bool:
        """Tells whether there is nothing more to wait for."""
        run = self._round_loop.run
        if run is None or (run.name, run.round) != (address.run, address.round) or run.phase != "open":
            return True
        return run.exchange is None or _is_closed(run.exchange, phase)


def _stage(run: Run) -> Stage:
    """Returns the round and its phase, on which the verification of a message depends."""
    return run.round, None if run.exchange is None else run.exchange.phase


def _is_closed(state: SecureRound, phase: Phase) -> bool:
    return PHASES.index(state.phase) > PHASES.index(phase)


def _current_exchange(run: Run, address: Address) -> SecureRound:
    run.require_not_ended()
    if run.exchange is None or run.round != address.round or run.phase not in ("open", "aggregated"):
        raise RoundClosedError(f"expected round {run.round} ({run.phase}) of {run.name}, got round {address.round}")
    return run.exchange
