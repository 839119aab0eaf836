"""Check and sum of a round's updates by several workers, block by block.

First each body is checked once, by some worker, in groups of clients. Then each worker sums blocks of coordinates
(`shared.strategies.blockwise`), for which it reads ranges of all bodies, and stores the centre of a block as a body;
the worker that leads takes part, joins the blocks and goes on as if it had summed alone, to the same bytes.

Of bodies in a folder, a worker trusts what another has checked only as it trusts its own earlier check: while size and
time of change of the file stay. Of bodies in a bucket each range is checked as it comes, by digests of its parts that
were counted at the upload (`storage.body_parts`): so each body is read once by all workers together, and none is
checked before. A rule that needs whole updates, or a limit of their distances, leaves both to the worker that leads.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from aggregator_service.aggregation.fetched_blocks import BodyLayout, FormArrays, fetch_block
from aggregator_service.process import LOGGER
from aggregator_service.rounds.run import Run
from aggregator_service.storage.body_parts import DamagedUpdatesError
from aggregator_service.storage.locations import Archive
from aggregator_service.storage.records import StoredUpdate
from aggregator_service.storage.sum_blocks import CLAIM_SECONDS, BlockClaim, BlockPlan, SumBlocks
from shared.errors import ConflictError, DamagedError, FederationError, UnavailableError
from shared.method.parameters import Array, Form, Parameters, State, Update
from shared.protocol.wire import body_pieces, open_parameters
from shared.strategies.blockwise import (
    Block,
    JoinedBlocks,
    Parts,
    Span,
    combine_block,
    gather_blocks,
    has_blocks,
    plan_blocks,
)
from shared.strategies.strategy import Combine

LEAST_SHARED = 64 << 20  # bytes of all updates: one worker sums fewer before another has looked
GROUP = 64  # bodies that are checked as one block
LEAST_FETCHED = 1 << 17  # values of a block that is fetched from a bucket: a call costs more than its bytes
FEWEST = 16  # blocks of a sum: each worker gets several, so that none waits long for the last one
RENEW_SECONDS = CLAIM_SECONDS / 5
LOOK_SECONDS = 0.05
CHECK, SUM = "check", "sum"


@dataclass(frozen=True)
class RoundInputs:
    """Updates of a closed round and the rule of their centre.

    before: loads the state before the round. load: opens all updates. forms: of their tensors.
    """

    run: Run
    held: Sequence[StoredUpdate]
    combine: Combine
    before: Callable[[], State]
    load: Callable[[], list[Update]]
    forms: Mapping[str, Form]

    @property
    def ranges_suffice(self) -> bool:
        """Whether ranges of the bodies can be checked, and are all that the round needs."""
        alone = self.run.request.method.quarantine_factor == 0 and has_blocks(self.combine)
        return alone and all(one.parts is not None for one in self.held)

    def digest(self) -> str:
        """Computes a digest of the list of updates, which workers compare."""
        lines = (f"{one.receipt.client} {one.receipt.digest} {one.blob}\n" for one in self.held)
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def find_blocks(archive: Archive) -> SumBlocks | None:
    """Returns the shared blocks of work; None for one process."""
    workers = archive.database.workers
    return None if workers is None else SumBlocks(archive.database, workers)


def open_shared_sum(archive: Archive, inputs: RoundInputs) -> SharedSum | None:
    """Opens a round's sum for several workers; None if the leader sums alone."""
    blocks = find_blocks(archive)
    if blocks is None or sum(one.receipt.size for one in inputs.held) < LEAST_SHARED:
        return None
    return SharedSum(archive, blocks, inputs) if archive.blobs.shared or inputs.ranges_suffice else None


class SharedSum:
    """A round's check and sum, shared with other workers."""

    def __init__(self, archive: Archive, blocks: SumBlocks, inputs: RoundInputs) -> None:
        self._archive, self._blocks, self._inputs = archive, blocks, inputs
        self._opened: tuple[State, list[Update], list[Block]] | None = None

    @property
    def checks_ranges(self) -> bool:
        """Whether bodies are checked in the sum alone."""
        return not self._archive.blobs.shared

    def check_bodies(self) -> None:
        """Checks each body once with other workers.

        Those that are sound then count as checked here.
        """
        held = self._inputs.held
        groups = [held[begin : begin + GROUP] for begin in range(0, len(held), GROUP)]
        for group, result in zip(groups, self._share(CHECK, len(groups), ""), strict=True):
            self._trust(group, result)

    def combine(self) -> State:
        """Computes the centre of the updates with other workers.

        Raises DamagedUpdatesError for bodies in a bucket that are not as they came.
        """
        before, updates, blocks = self._open()
        joined = JoinedBlocks(self._inputs.combine, before, updates, blocks)
        known = "" if self.checks_ranges else self._marks()
        results = [json.loads(one) for one in self._share(SUM, len(blocks), known)]
        self._require_sound({client for told in results for client in told.get("damaged", ())})
        for block, told in zip(blocks, results, strict=True):
            self._add_result(joined, block, told)
        return joined.finish()

    def _marks(self) -> str:
        return json.dumps([self._archive.blobs.mark(str(one.blob)) for one in self._inputs.held])

    def _require_sound(self, clients: Collection[str]) -> None:
        lost = [one for one in self._inputs.held if one.receipt.client in clients]
        if lost:
            raise DamagedUpdatesError(lost)

    def take_block(self, plan: BlockPlan) -> bool:
        """Claims a block and stores its result; False without a block."""
        claim = self._blocks.claim(plan)
        if claim is None:
            return False
        try:
            if plan.updates != self._inputs.digest():
                self._blocks.release(claim)
                return False
            if plan.step == CHECK:
                self._blocks.store(claim, self._check(claim))
            else:
                self._store_parts(claim)
        except ConflictError:  # it took too long here, and another worker has the block
            return True
        except BaseException:
            with suppress(FederationError):
                self._blocks.release(claim)
            raise
        return True

    def _share(self, step: str, count: int, known: str) -> list[str]:
        """Publishes a step, takes part in it, and returns the results once all are there."""
        run = self._inputs.run
        plan = self._blocks.publish(run.name, run.round, step, blocks=count, updates=self._inputs.digest(), known=known)
        try:
            while self._blocks.count_open(plan) > 0:
                if not self.take_block(plan):
                    time.sleep(LOOK_SECONDS)
            return self._blocks.results(plan)
        except ConflictError as error:
            raise UnavailableError(str(error)) from None
        finally:
            self._blocks.drop(plan)

    def _check(self, claim: BlockClaim) -> str:
        look, marks = self._renewal(claim), []
        for one in self._inputs.held[claim.number * GROUP :][:GROUP]:
            look()
            blobs, name = self._archive.blobs, str(one.blob)
            marks.append(blobs.mark(name) if blobs.damage(name, one.receipt.digest) is None else None)
        return json.dumps(marks)

    def _trust(self, group: Sequence[StoredUpdate], marks: str) -> None:
        """Takes bodies as sound that another worker has found so; all others are checked here."""
        found = json.loads(marks)
        for one, mark in zip(group, found, strict=True):
            if mark is not None:
                self._archive.blobs.trust(str(one.blob), one.receipt.size, int(mark))

    def _open(self) -> tuple[State, list[Update], list[Block]]:
        if self._opened is None:
            before, combine = self._inputs.before(), self._inputs.combine
            if self.checks_ranges:
                forms = FormArrays(self._inputs.forms)
                updates = [Update(one.receipt.client, forms, one.scalars) for one in self._inputs.held]
                blocks = gather_blocks(plan_blocks(combine, before, updates, fewest=FEWEST), LEAST_FETCHED)
            else:
                updates = self._inputs.load()
                blocks = plan_blocks(combine, before, updates, fewest=FEWEST)
            self._opened = before, updates, blocks
        return self._opened

    def _store_parts(self, claim: BlockClaim) -> None:
        if self._opened is None and not self._blocks.leads and not self.checks_ranges:
            self._trust(self._inputs.held, self._blocks.load_known(claim.plan))
        block = self._open()[2][claim.number]
        try:
            parts = self._combine_block(block, self._renewal(claim))
        except DamagedUpdatesError as error:
            self._blocks.store(claim, json.dumps({"damaged": [one.receipt.client for one in error.updates]}))
            return
        named = {f"{place}/{name}": value for place, span in enumerate(block) for name, value in parts[span].items()}
        blob = self._archive.blobs.save(body_pieces(Parameters(named)))
        try:
            result = {"blob": blob.name, "digest": blob.digest, "size": blob.size, "spans": block}
            self._blocks.store(claim, json.dumps(result))
        except ConflictError:
            self._archive.blobs.remove([blob.name])
            raise

    def _combine_block(self, block: Block, look: Callable[[], None]) -> Parts:
        before, updates, _ = self._open()
        combine = partial(combine_block, self._inputs.combine, before)
        if not self.checks_ranges:
            return combine(updates, block, look)
        layout = BodyLayout(self._inputs.forms)
        with fetch_block(self._archive.blobs, layout, self._inputs.held, block, look) as fetched:
            return combine(fetched, block, look)

    def _add_result(self, joined: JoinedBlocks, block: Block, told: Mapping[str, Any]) -> None:
        """Adds the centre of a block; computes it here if the stored one is damaged."""
        try:
            joined.add_block(block, self._read_parts(block, told))
        except (FederationError, LookupError, ValueError) as error:
            LOGGER.warning("block_damaged", reason=type(error).__name__)
            joined.add_block(block, self._combine_block(block, lambda: None))
        self._archive.blobs.remove([told["blob"]])

    def _read_parts(self, block: Block, told: Mapping[str, Any]) -> Parts:
        if told["spans"] != [list(span) for span in block]:
            raise DamagedError("expected the block that was asked for, got another")
        if (damage := self._archive.blobs.damage(told["blob"], told["digest"])) is not None:
            raise DamagedError(f"the centre of a block is damaged: {damage}")
        found = open_parameters(self._archive.blobs.path(told["blob"]))[1].arrays
        parts: dict[Span, dict[str, Array]] = {span: {} for span in block}
        for key in found:
            place, _, name = key.partition("/")
            parts[block[int(place)]][name] = found[key]
        return parts

    def _renewal(self, claim: BlockClaim) -> Callable[[], None]:
        return Renewal(partial(self._blocks.renew, claim)).look


class Renewal:
    """Renews a claim while its worker is at work."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew, self._due = renew, time.monotonic() + RENEW_SECONDS

    def look(self) -> None:
        """Renews the claim when it is due."""
        if time.monotonic() >= self._due:
            self._renew()
            self._due = time.monotonic() + RENEW_SECONDS
