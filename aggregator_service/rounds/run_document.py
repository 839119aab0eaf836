"""A run <-> the JSON document under which it is stored, with the number of its version.

What comes in large numbers lies in rows of its own: receipts of the round's updates, messages of its secure exchange.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict
from pydantic.main import IncEx
from sqlalchemy import Connection

from aggregator_service.rounds.run import CANCELLED, Run
from aggregator_service.storage import runs
from aggregator_service.storage.database import Database
from aggregator_service.storage.rows import UncoveredSum
from aggregator_service.storage.runs import Write, stored_updates
from shared.protocol.secure.server import PHASES, SecureRound

MESSAGES: IncEx = {str(phase) for phase in PHASES}
IN_ROWS: dict[str, IncEx | bool] = {"receipts": True, "exchange": MESSAGES}


class RunDocument(BaseModel):
    """Whoever changes the fields of `Run` gives them defaults, or adds a version and a revision that converts."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    run: Run


def encode_run(run: Run) -> str:
    """The document of a run."""
    return RunDocument(run=run).model_dump_json(exclude={"run": IN_ROWS})


def decode_run(document: str) -> Run:
    """The run of a document, without what lies in rows. Earlier versions
    wrote a cancelled run as a failed one."""
    run = RunDocument.model_validate_json(document).run
    if (run.phase, run.reason) == ("failed", CANCELLED):
        return replace(run, phase="cancelled")
    return run


def load_run(connection: Connection, name: str | None = None) -> Run | None:
    """The named run, or the newest one; None where there is no such run."""
    document = runs.run_document(connection, name)
    if document is None:
        return None
    run = decode_run(document)
    updates = stored_updates(connection, run.name, number=run.round)
    receipts = {update.receipt.client: update.receipt for update in updates}
    return replace(run, receipts=receipts, exchange=run.exchange and _load_exchange(connection, run.exchange))


def _load_exchange(connection: Connection, exchange: SecureRound) -> SecureRound:
    terms = exchange.terms
    messages = runs.secure_messages(connection, terms.run, number=terms.round)
    return SecureRound.model_validate({"terms": terms, "phase": exchange.phase, **messages})


def save_run(database: Database, run: Run, *, sequence: int, writes: tuple[Write, ...] = ()) -> None:
    """Make a run durable, with what came with it (`writes`) and what it means for secure rows: one transaction."""
    every_write = (*writes, *_secure_writes(run))
    runs.commit_run(database, run.name, encode_run(run), sequence=sequence, writes=every_write)


def _secure_writes(run: Run) -> Iterator[Write]:
    if run.pledge is None:
        return
    exchange = run.exchange
    yield partial(runs.forget_messages, except_of=None if exchange is None else (run.name, run.round))
    if exchange is not None and exchange.phase in ("consents", "answers"):
        common = exchange.terms.common
        uncovered = UncoveredSum(common.start, common.method, common.seed, run.name, exchange.survivors)
        yield partial(runs.add_sum, uncovered=uncovered)
