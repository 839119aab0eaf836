"""Who is shut out, since when and why -> rows that stay once lifted; and how often a run has refused a client."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass

from sqlalchemy import delete, select, update
from sqlalchemy.dialects.sqlite import insert

from aggregator_service.rounds.run import Run
from aggregator_service.storage import store
from aggregator_service.storage.database import Database
from aggregator_service.storage.tables import QUARANTINES, REFUSALS, UPDATES
from shared.protocol.schemas import Cause

ACTIVE = QUARANTINES.c.lifted_at.is_(None)


@dataclass(frozen=True)
class Quarantine:
    """One client shut out. `run` and `round`: where that came about, if in a run."""

    client: str
    cause: Cause
    reason: str
    since: float
    run: str | None = None
    round: int | None = None


def for_distance(run: Run, beyond: Mapping[str, float], *, now: float) -> list[Quarantine]:
    """One for each client whose update was so many times further than the median of the run's current round."""
    most = f"expected at most {run.request.method.quarantine_factor:g}"
    words = {
        client: f"its update was {times:.3g} times as far as the median, {most}" for client, times in beyond.items()
    }
    return [Quarantine(client, "distance", why, now, run.name, run.round) for client, why in sorted(words.items())]


def active(database: Database) -> dict[str, Quarantine]:
    """All that are shut out now, by client."""
    with database.reading() as connection:
        rows = connection.execute(select(QUARANTINES).where(ACTIVE)).all()
    return {row.client: Quarantine(row.client, row.cause, row.reason, row.since, row.run, row.round) for row in rows}


def impose(
    database: Database,
    run: Run | None,
    *,
    entries: Collection[Quarantine],
    dropped: Collection[str],
    sequence: int,
) -> None:
    """Shut clients out, together with what follows for the run; `dropped`: whose update of its round is not used."""
    with database.writing() as connection:
        for entry in entries:
            connection.execute(insert(QUARANTINES).values(asdict(entry)))
        if run is not None:
            theirs = (UPDATES.c.run == run.name) & (UPDATES.c.round == run.round) & UPDATES.c.client.in_(dropped)
            connection.execute(delete(UPDATES).where(theirs))
            store.write_run(connection, run, sequence)


def lift(database: Database, run: Run | None, *, client: str, now: float, sequence: int) -> None:
    """Let a client in again; what was refused of it before is forgotten."""
    with database.writing() as connection:
        connection.execute(update(QUARANTINES).where(ACTIVE & (QUARANTINES.c.client == client)).values(lifted_at=now))
        connection.execute(delete(REFUSALS).where(REFUSALS.c.client == client))
        if run is not None:
            store.write_run(connection, run, sequence)


def count_refusal(database: Database, run: str, *, client: str) -> int:
    """One more update of this client was refused in this run -> how many that makes."""
    first = insert(REFUSALS).values(run=run, client=client, refused=1)
    counted = first.on_conflict_do_update(["run", "client"], set_={"refused": REFUSALS.c.refused + 1})
    with database.writing() as connection:
        return int(connection.execute(counted.returning(REFUSALS.c.refused)).scalar_one())


def refusals(database: Database, run: str) -> dict[str, int]:
    """How many updates of each client this run has refused, where it has refused any."""
    with database.reading() as connection:
        rows = connection.execute(select(REFUSALS).where(REFUSALS.c.run == run))
        return {row.client: row.refused for row in rows}
