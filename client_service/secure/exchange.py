"""One update -> masked and summed with the others': keys, shares, the masked vector, answers. Resumes where it was.

Each step keeps its state before its message leaves, so that a client that was killed sends the same again.
"""

from __future__ import annotations

from typing import TypeVar

from client_service.boundary.aggregator import Aggregator
from client_service.secure.vault import Vault
from shared.masked_wire import encode_masked
from shared.schemas import ReceiptOut
from shared.secure import client
from shared.secure.messages import Delivery, Roster, Terms, UnmaskRequest
from shared.secure.state import Begun, Ready, Sharing, State
from shared.strategy import Parameters

Answer = TypeVar("Answer", Roster, Delivery, UnmaskRequest)
S = TypeVar("S", Begun, Sharing, Ready)


class Exchange:
    """A client's part in one secure round. `wait`: the length of one long poll, in seconds.

    The aggregator's deadlines bound every wait: it refuses whoever asks for a round that is over.
    """

    def __init__(self, name: str, aggregator: Aggregator, vault: Vault, *, wait: float) -> None:
        self._name, self._aggregator, self._vault, self._wait = name, aggregator, vault, wait

    async def send(self, terms: Terms, update: Parameters) -> ReceiptOut:
        """All four phases; the receipt of the masked vector.

        RoundClosedError or NotFoundError where the round goes on, or has ended, without this client; ConflictError
        where the aggregator holds other messages of it than were kept here; PrivacyError and ProtocolError where the
        aggregator or another client does not keep to the protocol: then nothing more of this round leaves.
        """
        state: State = self._vault.kept(terms) or self._kept(client.begin(terms, self._name)[0])
        if isinstance(state, Begun):
            state = await self._share(terms, state)
        if isinstance(state, Sharing):
            state = await self._take(terms, state)
        return await self._mask(terms, state, update)

    async def _share(self, terms: Terms, state: Begun) -> Sharing:
        await self._aggregator.relay("keys", client.public_keys(state))
        roster = await self._told("roster", Roster, terms)
        return self._kept(client.share(state, roster)[0])

    async def _take(self, terms: Terms, state: Sharing) -> Ready:
        await self._aggregator.relay("shares", state.message)
        return self._kept(client.take(state, await self._told("delivery", Delivery, terms)))

    async def _mask(self, terms: Terms, state: Ready, update: Parameters) -> ReceiptOut:
        ready, masked = client.mask(state, update)
        self._kept(ready)
        receipt = await self._aggregator.upload(terms.run, terms.round, encode_masked(masked))
        answered, message = client.unmask(ready, await self._told("request", UnmaskRequest, terms))
        self._kept(answered)
        await self._aggregator.relay("answers", message)
        return receipt

    async def _told(self, kind: str, model: type[Answer], terms: Terms) -> Answer:
        while True:
            found = await self._aggregator.relayed(kind, model, terms.run, terms.round, self._wait)
            if found is not None:
                return found

    def _kept(self, state: S) -> S:
        self._vault.keep(state)
        return state
