"""One client's body for one round -> spooled, held against the declaration, accepted; or refused and gone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from aggregator_service.rounds import transitions
from aggregator_service.rounds.conductor import Clock, Conductor
from aggregator_service.rounds.run import Run
from aggregator_service.storage.archive import Archive
from aggregator_service.storage.blobs import Blob
from aggregator_service.storage.rows import Receipt, StoredUpdate
from aggregator_service.storage.updates import add_update, stored_update
from aggregator_service.threads import off_loop
from shared.errors import ProtocolError
from shared.method.declaration import Declaration
from shared.method.exchanged import Scalars
from shared.method.ranges import require_within
from shared.protocol.lengths import require_head
from shared.protocol.wire import check, open_parameters, require_canonical

T = TypeVar("T")


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

    async def receive_update(self, address: Address, body: AsyncIterator[bytes]) -> tuple[Receipt, bool]:
        """The receipt of an update, and whether it is new."""
        await self._require_place(address)
        look = partial(read_scalars, self._declaration)
        return await spool_body(self._archive, body, look, partial(self._take_update, address))

    async def _require_place(self, address: Address) -> None:
        """Refuse before the body is read what could not be accepted after it."""
        run = await self._conductor.find_run(address.run)
        transitions.require_taken(run, address.client)
        if await self._stored_receipt(run, address) is None:
            transitions.require_open(run, address.round, now=self._clock())

    async def _stored_receipt(self, run: Run, address: Address) -> Receipt | None:
        if address.round == run.round:
            return run.receipts.get(address.client)
        find = partial(stored_update, number=address.round, client=address.client)
        update = await off_loop(find, self._archive.database, address.run)
        return None if update is None else update.receipt

    async def _take_update(self, address: Address, blob: Blob, scalars: Scalars) -> tuple[Receipt, bool]:
        async with self._conductor.lock:
            run = await self._conductor.find_run(address.run)
            held = await self._stored_receipt(run, address)
            receipt = Receipt(address.run, address.round, address.client, blob.digest, blob.size, self._clock())
            after = transitions.accept_update(run, receipt, earlier=held)
            if held is not None:
                return held, False
            require_within(self._archive.strategy(run.request.method).ranges, scalars)
            update = StoredUpdate(receipt, scalars, blob.name)
            await self._conductor.commit_transition(after, partial(add_update, stored=update))
            return receipt, True


def read_scalars(declaration: Declaration, path: str) -> Scalars:
    """The scalars of a spooled body that is exactly what was declared; ProtocolError for any other."""
    require_head(declaration, path)
    try:
        specification, content = open_parameters(path)
    except RecursionError:  # what the JSON reader makes of "[[[[..."
        raise ProtocolError("expected the scalars as JSON, got a structure too deep to read") from None
    check(declaration, specification, content)
    require_canonical(path, declaration, content.scalars)
    return content.scalars


async def spool_body(
    archive: Archive,
    body: AsyncIterator[bytes],
    inspect: Callable[[str], T],
    take: Callable[[Blob, T], Awaitable[tuple[Receipt, bool]]],
) -> tuple[Receipt, bool]:
    """The receipt that `take` gives for what `inspect` has found in the body's file, and whether it is new.

    The file stays only where it is.
    """
    blob = await archive.blobs.receive(body, limit=archive.longest_update)
    found = await _inspect_blob(archive, blob, inspect)
    try:
        receipt, new = await take(blob, found)
    except Exception:  # not where a shutdown cancels this: its commit may still be on the way
        archive.blobs.remove([blob.name])
        raise
    if not new:
        archive.blobs.remove([blob.name])
    return receipt, new


async def _inspect_blob(archive: Archive, blob: Blob, inspect: Callable[[str], T]) -> T:
    """The file of a body that is refused is gone, and that of one which a shutdown cut off here."""
    try:
        with archive.database.disk.translate_refusal("the body to be read again"):
            return await archive.tensors.off_loop(inspect, archive.blobs.path(blob.name))
    except BaseException:
        archive.blobs.remove([blob.name])
        raise
