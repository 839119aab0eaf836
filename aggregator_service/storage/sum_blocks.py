"""Blocks of a round's work that workers share: who has claimed each, and its result.

The worker that leads publishes a plan: the blocks of one step of one round. Any worker claims a block, works, and
stores the result. A claim that is not renewed for CLAIM_SECONDS, because its worker has died or stalled, is given to
the next who asks, and raises the block's number of claims: only the newest claim can store a result, once. A plan is
published and dropped on the leader's own session, which ends when another worker takes the lead: so a leader that
was stopped meanwhile neither replaces nor removes the next leader's plan, and gets no result of its own.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from sqlalchemy import Column, Float, ForeignKey, MetaData, Table, delete, func, insert, inspect, select, text, update

from aggregator_service.storage.database import Database
from aggregator_service.storage.engines.shared_postgresql import CHANNEL, SharedPostgreSQL
from aggregator_service.storage.tables import TEXT, WHOLE
from shared.errors import ConflictError
from shared.timeouts import STALL_SECONDS

CLAIM_SECONDS = STALL_SECONDS  # of a claim that is not renewed
TABLES = MetaData()
PLANS = Table(
    "sum_plans",
    TABLES,
    Column("id", TEXT, primary_key=True),
    Column("run", TEXT, nullable=False),
    Column("round", WHOLE, nullable=False),
    Column("step", TEXT, nullable=False),
    Column("updates", TEXT, nullable=False),
    Column("known", TEXT, nullable=False),
)
BLOCKS = Table(
    "sum_blocks",
    TABLES,
    Column("plan", TEXT, ForeignKey("sum_plans.id", ondelete="CASCADE"), primary_key=True),
    Column("number", WHOLE, primary_key=True),
    Column("claims", WHOLE, nullable=False),
    Column("claimed_at", Float),
    Column("result", TEXT),
)
REPLACED = "expected the plan of the worker that leads, another worker leads by now"
MAKING = 0x4C50_5346_6564 + 6  # lock of the worker that makes the tables
NOW = func.extract("epoch", func.clock_timestamp())  # the server's: the workers' clocks differ


@dataclass(frozen=True)
class BlockPlan:
    """Blocks of one step of a round.

    updates: digest of the list of updates that the leader sees.
    """

    id: str
    run: str
    round: int
    step: str
    updates: str


@dataclass(frozen=True)
class BlockClaim:
    """Block that this worker has claimed; `count`: number of claims of the block so far."""

    plan: BlockPlan
    number: int
    count: int


class SumBlocks:
    """BlockPlan of the worker that leads, and the claims of all workers."""

    def __init__(self, database: Database, workers: SharedPostgreSQL) -> None:
        self._database, self._workers = database, workers

    @property
    def leads(self) -> bool:
        """Whether this worker leads."""
        return self._workers.leads

    def publish(self, run: str, number: int, step: str, *, blocks: int, updates: str, known: str) -> BlockPlan:
        """Publishes a plan in place of any other, and wakes the workers.

        known: what a worker needs to know beside the updates. Raises UnavailableError unless this worker leads.
        """
        plan = BlockPlan(uuid.uuid4().hex, run, number, step, updates)
        rows = [{"plan": plan.id, "number": one, "claims": 0} for one in range(blocks)]
        with self._database.disk.translate_errors("the lead"), self._workers.leading() as connection:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MAKING})
            TABLES.create_all(connection)
            connection.execute(delete(PLANS))
            connection.execute(insert(PLANS).values(**vars(plan), known=known))
            connection.execute(insert(BLOCKS), rows)
            connection.execute(text("SELECT pg_notify(:channel, '')"), {"channel": CHANNEL})
        return plan

    def drop(self, plan: BlockPlan) -> None:
        """Removes a plan with its blocks."""
        with self._database.recording() as connection:
            connection.execute(delete(PLANS).where(PLANS.c.id == plan.id))

    def find_plan(self) -> BlockPlan | None:
        """Returns the newest plan; None if no sum is shared."""
        with self._database.reading() as connection:
            if not inspect(connection).has_table(PLANS.name):
                return None
            columns = (PLANS.c.id, PLANS.c.run, PLANS.c.round, PLANS.c.step, PLANS.c.updates)
            row = connection.execute(select(*columns)).first()
        return None if row is None else BlockPlan(**row._mapping)

    def load_known(self, plan: BlockPlan) -> str:
        """Returns the known data of a plan; raises ConflictError for a dropped one."""
        with self._database.reading() as connection:
            found = connection.scalar(select(PLANS.c.known).where(PLANS.c.id == plan.id))
        if found is None:
            raise ConflictError(REPLACED)
        return str(found)

    def claim(self, plan: BlockPlan) -> BlockClaim | None:
        """Claims a block that is free, or whose worker is silent; None without one."""
        free = (
            select(BLOCKS.c.number)
            .where(BLOCKS.c.plan == plan.id, BLOCKS.c.result.is_(None))
            .where(BLOCKS.c.claimed_at.is_(None) | (BLOCKS.c.claimed_at < NOW - CLAIM_SECONDS))
            .order_by(BLOCKS.c.number)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        claimed = (
            update(BLOCKS)
            .where(BLOCKS.c.plan == plan.id, BLOCKS.c.number == free.scalar_subquery())
            .values(claims=BLOCKS.c.claims + 1, claimed_at=NOW)
            .returning(BLOCKS.c.number, BLOCKS.c.claims)
        )
        with self._database.recording() as connection:
            row = connection.execute(claimed).first()
        return None if row is None else BlockClaim(plan, row.number, row.claims)

    def renew(self, claim: BlockClaim) -> None:
        """Shows that the worker is alive; raises ConflictError if the block is another's by now."""
        self._change(claim, claimed_at=NOW)

    def release(self, claim: BlockClaim) -> None:
        """Gives a block back, for another worker to claim."""
        self._change(claim, claimed_at=None)

    def store(self, claim: BlockClaim, result: str) -> None:
        """Stores the result of a block; raises ConflictError if it is another's by now."""
        self._change(claim, result=result)

    def _change(self, claim: BlockClaim, **values: object) -> None:
        mine = (BLOCKS.c.plan == claim.plan.id) & (BLOCKS.c.number == claim.number) & (BLOCKS.c.claims == claim.count)
        with self._database.recording() as connection:
            changed = connection.execute(update(BLOCKS).where(mine, BLOCKS.c.result.is_(None)).values(**values))
        if changed.rowcount != 1:
            raise ConflictError("expected a block of this worker's own, another has it by now")

    def count_open(self, plan: BlockPlan) -> int:
        """Counts the blocks without a result; raises ConflictError for a plan that another has replaced."""
        counts = select(func.count(), func.count(BLOCKS.c.result)).where(BLOCKS.c.plan == plan.id)
        with self._database.reading() as connection:
            every, stored = connection.execute(counts).one()
        if every == 0:
            raise ConflictError(REPLACED)
        return int(every - stored)

    def results(self, plan: BlockPlan) -> list[str]:
        """Returns the results of all blocks in order.

        Raises ConflictError for a plan that another has replaced.
        """
        rows = select(BLOCKS.c.result).where(BLOCKS.c.plan == plan.id).order_by(BLOCKS.c.number)
        with self._database.reading() as connection:
            found = list(connection.scalars(rows))
        if not found:
            raise ConflictError(REPLACED)
        return found
