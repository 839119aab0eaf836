"""Secure exchange of one update: keys, shares, checks, masked vector, consent, answers.

The aggregator learns the sum of the updates alone. Each step saves its state before its message leaves: a client that
was killed sends the same message again and continues.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from client_service.boundary.aggregator_api import Aggregator
from client_service.runtime.interruption import RoundDeadline
from client_service.runtime.logs import LOGGER
from client_service.secure_rounds.masking import Masking
from shared.errors import PrivacyError, RoundClosedError
from shared.method.parameters import Parameters
from shared.protocol.masked_wire import encode_masked
from shared.protocol.schemas import ReceiptOut
from shared.protocol.secure import client
from shared.protocol.secure.common import describe_terms
from shared.protocol.secure.membership import LEAST_SILOS
from shared.protocol.secure.messages import (
    ClientMessage,
    Consents,
    Delivery,
    Roster,
    RoundTerms,
    Sharers,
    UnmaskRequest,
)
from shared.protocol.secure.state import BegunState, CheckedState, ReadyState, SharingState, State, find_terms
from shared.protocol.secure.tags import PairKeys
from shared.protocol.signing.keys import PrivateKey
from shared.sums import is_sum

Answer = TypeVar("Answer", Roster, Delivery, Sharers, UnmaskRequest, Consents)
S = TypeVar("S", BegunState, SharingState, CheckedState, ReadyState)


@dataclass(frozen=True)
class BasisPart:
    """A silo's part in a basis run.

    stamp: stands for the silo's data. catalogue: digest of the list of items that it counts over. least: smallest
    number of silos by whose data two sums may differ. listed: have the silos summed that list?
    """

    stamp: str
    catalogue: str
    least: int
    listed: bool = False


def mask_body(
    state: CheckedState | ReadyState,
    sharers: Sharers,
    update: Parameters,
    identity: PrivateKey,
    pairs: PairKeys | None = None,
) -> tuple[ReadyState, bytes]:
    """Masks the update; returns the new state and the body to send.

    Slow: one stream of masks for each sharer.
    """
    ready, masked = client.mask_update(state, sharers, update, identity, pairs)
    return ready, encode_masked(masked)


class SecureExchange:
    """A client's part in one secure round.

    `wait`: seconds of one long poll. `worker`: runs the masking. basis: in a basis run, see `BasisPart`. patience:
    deadline after which the round is aborted.

    The aggregator's deadlines bound every wait: it refuses calls for a round that is over.
    """

    def __init__(
        self,
        masking: Masking,
        aggregator: Aggregator,
        *,
        wait: float,
        worker: Executor,
        basis: BasisPart | None = None,
        patience: RoundDeadline | None = None,
    ) -> None:
        self._patience = patience or RoundDeadline()
        self._own, self._aggregator, self._wait, self._worker = masking, aggregator, wait, worker
        self._stamp = None if basis is None else basis.stamp
        self._catalogue = None if basis is None else basis.catalogue
        self._least = LEAST_SILOS if basis is None else basis.least
        self._listed = basis.catalogue if basis is not None and basis.listed else ""
        self._secrets, self._memory = masking.round_secrets, masking.memory

    async def send(self, terms: RoundTerms, update: Parameters) -> ReceiptOut:
        """Runs all six phases, and returns the receipt of the masked vector.

        Raises RoundClosedError or NotFoundError if the round continues, or has ended, without this client;
        ConflictError if the aggregator holds other messages of it than were saved here; PrivacyError and
        ProtocolError if the aggregator or another client breaks the protocol: then nothing more of this round
        leaves.
        """
        state = self._resume(terms) or self._begin(terms)
        if isinstance(state, BegunState):
            state = await self._share(terms, state)
        if isinstance(state, SharingState):
            state = await self._check(terms, state)
        return await self._mask(terms, state, update)

    def _resume(self, terms: RoundTerms) -> State | None:
        """Loads the state of an earlier process in this round.

        Raises PrivacyError if the round now has other terms, or is held a second time: a round has one exchange.
        """
        state = self._secrets.load(terms.run, terms.round)
        if state is None:
            if self._memory.has_begun(terms):
                raise PrivacyError(f"expected one exchange in round {terms.round} of {terms.run}, got a second one")
            return None
        if find_terms(state) != terms:
            raise PrivacyError(describe_terms(find_terms(state), terms))
        self._memory.remember_exchange(terms)
        return state

    def _begin(self, terms: RoundTerms) -> BegunState:
        own = self._own
        self._memory.require_pinned_terms(terms)
        bears = own.noised or (own.changing_members and terms.common.changing_members)
        if is_sum(terms.declaration) or not bears:  # what a basis run multiplies with follows from all its sums
            self._memory.require_every_sum(terms)
        state = client.begin_secure_round(
            terms,
            own.name,
            own.identity,
            noised=own.noised,
            changing_members=own.changing_members,
            stamp=self._stamp,
            catalogue=self._catalogue,
        )
        self._secrets.save(state)  # first: a crash in between is followed by the same keys
        self._memory.remember_exchange(terms)
        return state

    async def _share(self, terms: RoundTerms, state: BegunState) -> SharingState:
        roster = await self._exchange("keys", state.message, "roster", Roster, terms)
        identity = self._own.identity
        members = self._own.members.trusted_keys(roster, self._own.name, identity.public_key())
        self._memory.require_renewable(roster, roster.names, self._least, self._listed)
        return self._save(client.share_secrets(state, roster, members, identity, colluders=self._own.colluders))

    async def _check(self, terms: RoundTerms, state: SharingState) -> CheckedState:
        delivery = await self._exchange("shares", state.message, "delivery", Delivery, terms)
        checked = client.check_shares(state, delivery, self._own.identity, self._own.pairs)
        for dealer in checked.message.complaints:
            LOGGER.warning("shares_refused", run=terms.run, round=terms.round, dealer=dealer)
        # Without complaints the message follows from the state before: whichever shares come, it is the same again.
        return self._save(checked) if checked.message.complaints else checked

    async def _mask(self, terms: RoundTerms, state: CheckedState | ReadyState, update: Parameters) -> ReceiptOut:
        if isinstance(state, CheckedState):
            sharers = await self._exchange("checks", state.message, "sharers", Sharers, terms)
        else:
            sharers = await self._ask("sharers", Sharers, terms)
        masked = partial(mask_body, state, sharers, update, self._own.identity, self._own.pairs)
        ready, body = await asyncio.get_running_loop().run_in_executor(self._worker, masked)
        self._save(ready)
        receipt = await self._aggregator.upload(terms.run, terms.round, body)
        await self._unmask(terms, ready)
        return receipt

    async def _unmask(self, terms: RoundTerms, state: ReadyState) -> None:
        """Helps to unmask the sum if it hides every member, also beside all earlier sums."""
        request = await self._ask("request", UnmaskRequest, terms)
        self._own.members.require_enough(request.survivors, terms.run)
        self._memory.require_safe_sum(state.roster, request.survivors, state.proven, self._least, self._listed)
        agreed, consent = client.sign_consent(state, request, self._own.identity, self._own.pairs)
        self._save(agreed)
        self._memory.remember_sum(state.roster, request.survivors, state.proven, self._listed)
        signatures = await self._exchange("consents", consent, "signatures", Consents, terms)
        answer = client.answer_unmask_request(agreed, signatures, self._own.pairs)
        with suppress(RoundClosedError):  # the others' answers were enough
            await self._aggregator.send_message("answers", answer)

    async def _exchange(
        self, call: str, message: ClientMessage, kind: str, model: type[Answer], terms: RoundTerms
    ) -> Answer:
        """Sends a message and returns the result of its phase.

        In one call, where the phase closes soon enough.
        """
        self._patience.check()
        found = await self._aggregator.exchange_message(call, message, model, self._wait)
        return await self._ask(kind, model, terms) if found is None else found

    async def _ask(self, kind: str, model: type[Answer], terms: RoundTerms) -> Answer:
        while True:
            self._patience.check()
            found = await self._aggregator.fetch_message(kind, model, terms.run, terms.round, self._wait)
            if found is not None:
                return found

    def _save(self, state: S) -> S:
        self._secrets.save(state)
        return state
