"""One client's body for one round -> spooled, held against the declaration, accepted; or refused and gone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from aggregator_service.rounds import transitions
from aggregator_service.rounds.conductor import Clock, Conductor
from aggregator_service.rounds.run import Receipt, Run
from aggregator_service.rounds.spooled import taken_in
from aggregator_service.storage import records, store
from aggregator_service.storage.blobs import Blob
from aggregator_service.storage.records import HeldUpdate
from aggregator_service.threads import off_loop
from shared.errors import ProtocolError
from shared.method.declaration import Declaration
from shared.method.exchanged import Scalars
from shared.method.ranges import require_within
from shared.protocol.lengths import require_head
from shared.protocol.wire import check, open_parameters, require_canonical


@dataclass(frozen=True)
class Address:
    """Whose update of which round."""

    run: str
    round: int
    client: str


class Uploads:
    """Takes updates in for the conductor's run."""

    def __init__(self, conductor: Conductor, declaration: Declaration, *, clock: Clock) -> None:
        self._conductor = conductor
        self._archive = conductor.archive
        self._declaration = declaration
        self._clock = clock

    async def receive(self, address: Address, body: AsyncIterator[bytes]) -> tuple[Receipt, bool]:
        """The receipt of an update, and whether it is new."""
        await self._require_place(address)
        look = partial(inspect, self._declaration)
        return await taken_in(self._archive, body, look, partial(self._take, address))

    async def _require_place(self, address: Address) -> None:
        """Refuse before the body is read what could not be accepted after it."""
        run = await self._conductor.find(address.run)
        transitions.require_taken(run, address.client)
        if await self._held(run, address) is None:
            transitions.require_open(run, address.round, now=self._clock())

    async def _held(self, run: Run, address: Address) -> Receipt | None:
        if address.round == run.round:
            return run.receipts.get(address.client)
        find = partial(records.update, number=address.round, client=address.client)
        held = await off_loop(find, self._archive.database, address.run)
        return None if held is None else held.receipt

    async def _take(self, address: Address, blob: Blob, scalars: Scalars) -> tuple[Receipt, bool]:
        async with self._conductor.lock:
            run = await self._conductor.find(address.run)
            held = await self._held(run, address)
            receipt = Receipt(address.run, address.round, address.client, blob.digest, blob.size, self._clock())
            after = transitions.accept(run, receipt, earlier=held)
            if held is not None:
                return held, False
            require_within(self._archive.strategy(run).ranges, scalars)
            update = HeldUpdate(receipt, scalars, blob.name)
            await self._conductor.commit(after, partial(store.add_update, held=update))
            return receipt, True


def inspect(declaration: Declaration, path: str) -> Scalars:
    """The scalars of a spooled body that is exactly what was declared; ProtocolError for any other."""
    require_head(declaration, path)
    try:
        specification, content = open_parameters(path)
    except RecursionError:  # what the JSON reader makes of "[[[[..."
        raise ProtocolError("expected the scalars as JSON, got a structure too deep to read") from None
    check(declaration, specification, content)
    require_canonical(path, declaration, content.scalars)
    return content.scalars
