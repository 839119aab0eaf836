"""Uploads of a round: stored, checked against the declaration, then accepted or removed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import anyio

from aggregator_service.process import Clock, run_in_worker
from aggregator_service.rounds import transitions
from aggregator_service.rounds.round_loop import RoundLoop
from aggregator_service.rounds.run import Run
from aggregator_service.storage.disk import Blob
from aggregator_service.storage.locations import Archive
from aggregator_service.storage.records import Receipt, StoredUpdate
from aggregator_service.storage.run_store import Write, add_message, add_updates, stored_update
from aggregator_service.storage.shared_records import SharedRecords
from aggregator_service.storage.write_batches import WriteBatches
from shared.errors import (
    FederationError,
    ForbiddenError,
    NotFoundError,
    ProtocolError,
    RoundClosedError,
    UnsettledError,
)
from shared.method.declaration import Declaration
from shared.method.parameters import Scalars
from shared.method.tensors import require_in_ranges
from shared.protocol.lengths import require_head
from shared.protocol.masked_wire import open_masked
from shared.protocol.secure.messages import ClientMessage, MaskedHeader
from shared.protocol.wire import find_scalars, open_parameters, require_canonical, require_content

UpdateHead = tuple[Scalars, MaskedHeader | None]  # an update's scalars, and the header of a masked one


@dataclass(frozen=True)
class Address:
    """Run, round and client of an update."""

    run: str
    round: int
    client: str


@dataclass(frozen=True)
class GivenUpdate:
    """Stored body of an update, with what was read of it."""

    address: Address
    blob: Blob
    scalars: Scalars
    header: MaskedHeader | None


Accepted = tuple[Receipt, bool]  # an update's receipt, and whether it is new
TakenUpdate = tuple[StoredUpdate, MaskedHeader | None]  # a new update, and the header of a masked one


class Uploads:
    """Uploads of the current run; `records`: of one of several workers."""

    def __init__(
        self, round_loop: RoundLoop, declaration: Declaration, records: SharedRecords | None, *, clock: Clock
    ) -> None:
        self._round_loop, self._records = round_loop, records
        self._archive = round_loop.archive
        self._declaration = declaration
        self._clock = clock
        self._batches = WriteBatches(self._store_given)

    async def receive_update(
        self, address: Address, body: AsyncIterator[bytes], digest: Callable[[], str] | None = None
    ) -> Accepted:
        """Stores an update; returns its receipt and whether it is new.

        digest: as in `Blobs.receive`.
        """
        run = await self._require_place(address)
        declaration = self._declaration.of_part(run.request.part)
        archive, find = self._archive, partial(find_update, declaration)
        blob, found = await archive.blobs.receive(
            body, limit=archive.longest_update, inspect=find, digest=digest, parted=archive.reads_ranges
        )
        look = partial(read_update, declaration, address)
        found = await _inspect_and_keep(self._archive, blob, found, look)
        return await _take_or_remove(self._archive, blob, partial(self._take_update, address, blob, found))

    async def _require_place(self, address: Address) -> Run:
        """Returns the run; refuses an update that cannot be accepted before its body is read."""
        run = await self._round_loop.find_run(address.run)
        transitions.require_enrolled(run, address.client)
        takes = transitions.is_open(run, address.round, now=self._clock())
        if self._records is not None and not self._declaration.secure and takes:
            return run  # a repeat is found by its insertion
        if await self._stored_receipt(run, address) is None:
            transitions.require_open(run, address.round, now=self._clock())
            if self._declaration.secure:
                require_masking(run, address.client)
        return run

    async def _stored_receipt(self, run: Run, address: Address) -> Receipt | None:
        if address.round == run.round and self._round_loop.workers is None:
            return run.receipts.get(address.client)
        return await self._find_receipt(address)

    async def _take_update(self, address: Address, blob: Blob, read: UpdateHead) -> Accepted:
        scalars, header = read
        if self._records is not None and header is None:
            return await self._add_receipt(self._records, address, blob, scalars)
        given = GivenUpdate(address, blob, scalars, header)
        if header is None:
            return await self._batches.add(given)
        [outcome] = await self._store_given([given])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def _store_given(self, given: Sequence[GivenUpdate]) -> list[Accepted | Exception]:
        """Accepts updates in the order given, and commits them together before it returns.

        A refused update, or row, refuses no other.
        """
        outcomes: list[Accepted | Exception] = []
        try:
            async with self._round_loop.lock:
                run, taken = self._round_loop.run, list[TakenUpdate]()
                for one in given:
                    try:
                        run, accepted = await self._accept(one, run, taken)
                        outcomes.append(accepted)
                    except FederationError as error:
                        outcomes.append(error)
                if run is not None and taken:
                    await self._round_loop.commit_transition(run, *_list_writes(taken))
        except Exception as error:
            if len(given) == 1 or isinstance(error, UnsettledError):
                return [error] * len(given)
            return [(await self._store_given([one]))[0] for one in given]
        return outcomes

    async def _accept(
        self, given: GivenUpdate, now: Run | None, taken: list[TakenUpdate]
    ) -> tuple[Run | None, Accepted]:
        """Returns the run after an update, and its receipt; adds it to those taken.

        now: the current run after the updates before it.
        """
        address, header = given.address, given.header
        run = now if now is not None and now.name == address.run else await self._round_loop.find_run(address.run)
        held = await self._stored_receipt(run, address)
        receipt = Receipt(address.run, address.round, address.client, given.blob.digest, given.blob.size, self._clock())
        after = transitions.accept_update(run, receipt, earlier=held, header=header)
        if held is not None:
            return now, (held, False)
        require_in_ranges(self._archive.strategy(run.request).ranges, given.scalars)
        stored = StoredUpdate(receipt, given.scalars, given.blob.name, given.blob.parts)
        taken.append((stored, header))
        return after, (receipt, True)

    async def _add_receipt(self, records: SharedRecords, address: Address, blob: Blob, scalars: Scalars) -> Accepted:
        """Adds a receipt beside those of the other workers, without a transition.

        The run is looked at again where a transition came in between, and an earlier receipt is looked for where the
        round is not open or has one.
        """
        held = None
        while True:
            run, number = await self._round_loop.find_run(address.run), self._round_loop.number
            if held is None and not transitions.is_open(run, address.round, now=self._clock()):
                held = await self._find_receipt(address)
            receipt = Receipt(address.run, address.round, address.client, blob.digest, blob.size, self._clock())
            known = replace(run, receipts={} if held is None else {address.client: held})
            transitions.require_acceptable(known, receipt, earlier=held)
            if held is not None:
                return held, False
            require_in_ranges(self._archive.strategy(run.request).ranges, scalars)
            recorded = await records.add_receipt(StoredUpdate(receipt, scalars, blob.name, blob.parts), number=number)
            if recorded.added:
                self._round_loop.announce_receipt()
                return receipt, True
            held = await self._find_receipt(address)
            await self._round_loop.follow(recorded.number)

    async def add_own_receipt(self, run: Run, client: str) -> Run:
        """Returns an open run with the client's receipt, which another worker may have given."""
        if self._round_loop.workers is None or run.phase != "open" or client in run.receipts:
            return run
        held = await self._find_receipt(Address(run.name, run.round, client))
        return run if held is None else replace(run, receipts={**run.receipts, client: held})

    async def wait_for_answer(self, run: Run, address: Address, wait: float) -> Run:
        """Waits until a round is aggregated, or its run ends, and returns the run.

        wait: seconds at most. Raises ConflictError if the client has to send its update again. A receipt that another
        worker has given is looked for once in each state of the run, and ends no wait.
        """
        until, resent = anyio.current_time() + wait, None
        while run.active:
            settled = partial(self._is_settled, address, resent)
            await self._round_loop.wait_until(settled, until - anyio.current_time())
            run = await self._round_loop.find_run(address.run)
            if run is resent or run.round != address.round or not run.must_resend(address.client):
                break
            (await self.add_own_receipt(run, address.client)).require_sent_again(address.client)
            resent = run
        return run

    def _is_settled(self, address: Address, resent: Run | None) -> bool:
        """Tells whether waiting changes no answer; resent: run in which the client has sent again."""
        run = self._round_loop.run
        if run is None or run.name != address.run or not run.active or run.is_aggregated(address.round):
            return True
        return run is not resent and run.round == address.round and run.must_resend(address.client)

    async def _find_receipt(self, address: Address) -> Receipt | None:
        find = partial(stored_update, number=address.round, client=address.client)
        update = await run_in_worker(find, self._archive.database, address.run)
        return None if update is None else update.receipt


def _list_writes(taken: Sequence[TakenUpdate]) -> list[Write]:
    masked = [partial(add_message, phase="masked", message=header) for _, header in taken if header is not None]
    return [partial(add_updates, stored=[update for update, _ in taken]), *masked]


def require_masking(run: Run, client: str) -> None:
    """Raises RoundClosedError unless the round takes masked vectors now.

    Raises NotFoundError for a client that shares no masks.
    """
    if run.exchange is None or run.exchange.phase != "masked":
        raise RoundClosedError(f"round {run.round}: expected the phase masked, it is in another")
    if client not in run.exchange.missing:
        raise NotFoundError(f"client {client!r} has shared no masks in round {run.round}")


def require_own_message(address: Address, message: ClientMessage) -> None:
    """Raises ForbiddenError for a message in another client's name.

    Raises ProtocolError for a message of another round than its path's.
    """
    if message.client != address.client:
        raise ForbiddenError(f"expected your own name, {address.client!r}, got {message.client!r}")
    if (message.run, message.round) != (address.run, address.round):
        raise ProtocolError(f"expected a message of round {address.round} of {address.run}, got one of another")


def find_update(declaration: Declaration, path: str) -> UpdateHead | None:
    """Reads the scalars of a stored body that is a declared update.

    None for any other, or a masked one.
    """
    scalars = None if declaration.secure else find_scalars(path, declaration)
    return None if scalars is None else (scalars, None)


def read_update(declaration: Declaration, address: Address, path: str) -> UpdateHead:
    """Reads scalars and header of a stored body that is valid in this round."""
    if not declaration.secure:
        return read_scalars(declaration, path), None
    require_head(declaration, path)
    header = open_masked(declaration, path).header
    require_own_message(address, header)
    return header.scalars, header


def read_scalars(declaration: Declaration, path: str) -> Scalars:
    """Reads the scalars of a stored body; raises ProtocolError unless it is as declared."""
    if (found := find_scalars(path, declaration)) is not None:
        return found
    require_head(declaration, path)
    try:
        specification, content = open_parameters(path)
    except RecursionError:  # the JSON reader's error for "[[[[..."
        raise ProtocolError("expected the scalars as JSON, got a structure too deep to read") from None
    require_content(declaration, specification, content)
    require_canonical(path, declaration, content.scalars)
    return content.scalars


async def _inspect_and_keep(
    archive: Archive, blob: Blob, found: UpdateHead | None, inspect: Callable[[str], UpdateHead]
) -> UpdateHead:
    """Inspects a stored body in which nothing was found yet, and keeps it.

    Removes it where it is refused or a shutdown interrupts.
    """
    try:
        if found is None:
            with archive.database.disk.translate_errors("the body to be read again"):
                found = await archive.tensors.run_in_worker(inspect, archive.blobs.path(blob.name))
        await archive.blobs.keep_received(blob)
    except BaseException:
        archive.blobs.discard(blob)
        raise
    return found


async def _take_or_remove(archive: Archive, blob: Blob, take: Callable[[], Awaitable[Accepted]]) -> Accepted:
    """Takes an update; removes its body again unless it is accepted as new."""
    try:
        receipt, new = await take()
    except UnsettledError:
        raise  # a row may name the file; if none does, the next start removes it
    except Exception:  # not for a cancellation by a shutdown: its commit may still be running
        await run_in_worker(archive.blobs.remove, [blob.name])
        raise
    if not new:
        await run_in_worker(archive.blobs.remove, [blob.name])
    return receipt, new
