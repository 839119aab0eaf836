"""PostgreSQL database that several workers of one federation share.

Every worker has one session of its own. Who changes a run holds an advisory lock on that session, the turn, and each
transaction of a turn raises one number, and only from the number that the turn began with. So a worker that was
stopped meanwhile writes nothing: its session has ended, or the number is another. One worker leads, by a second lock
on its session: it takes the steps of the rounds and makes the sums. Both locks end with the session, and a session
that holds one and has been silent for STALL_SECONDS is ended by whoever waits for it.

Receipts need no turn of their own: a transaction that adds one shares the turn's lock, so that it comes wholly before
or wholly after a transition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from sqlalchemy import URL, BigInteger, Column, Connection, MetaData, Table, insert, select, text, update
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from aggregator_service.storage.engines.pipelined_session import PipelinedSession, Rows, Statement
from aggregator_service.storage.engines.postgresql import ALONE, ARRIVING, OWNER, REGISTERING, TURN, PostgreSQL, commit
from shared.errors import UnavailableError
from shared.timeouts import STALL_SECONDS

APPLICATION = "lpsfed-worker"  # of sessions that may be ended for their silence
CHANNEL = "lpsfed"
RECEIPTS = "receipts"  # what is told of new receipts, which need no turn
LISTEN_SECONDS = 1.0  # between two looks whether to end

SHARED = MetaData()
TURNS = Table("turns", SHARED, Column("id", BigInteger, primary_key=True), Column("number", BigInteger, nullable=False))
"""The number of transactions that turns have made, in one row."""

BUSY = "expected the federation's turn, another worker has it: ask again"
NUMBER: Statement = ("SELECT number FROM turns", {})
LOOK = (
    "SELECT number, (SELECT count(*) FROM updates WHERE run = %(run)s::text AND round = %(round)s::bigint) FROM turns"
)
TELL: Statement = ("SELECT pg_notify(%(channel)s::text, %(what)s::text)", {"channel": CHANNEL, "what": RECEIPTS})
BESIDE_TRANSITIONS: Statement = ("SELECT pg_advisory_xact_lock_shared(%(key)s)", {"key": TURN})
BESIDE_ARRIVALS: Statement = ("SELECT pg_advisory_xact_lock_shared(%(key)s)", {"key": ARRIVING})
"""Statements by which a transaction adds rows beside others of its kind.

The first keeps transitions away until it ends, the second readers of the record of arrivals."""
CLOCK = text("SELECT extract(epoch FROM clock_timestamp())::float8")
# Locks of 64 bits are stored in two halves.
HOLDERS = text(
    "SELECT pg_terminate_backend(a.pid) FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid"
    " WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1"
    " AND ((l.classid::bigint << 32) | l.objid::bigint) = :key"
    " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    " AND a.application_name = :application AND a.state LIKE 'idle%'"
    " AND a.state_change < clock_timestamp() - make_interval(secs => :seconds)"
)


class SharedPostgreSQL(PostgreSQL):
    """Database that other workers use as well; `writing` needs a turn, `recording` does not."""

    shared = True
    application = APPLICATION

    def __init__(self, url: URL) -> None:
        self._number: int | None = None
        self._in_turn = False
        self.leads = False
        self._closing = threading.Event()
        self._listener: threading.Thread | None = None
        self._sessions: list[PipelinedSession] = []
        self._epoch = 0.0  # of the server's clock, when this machine started
        super().__init__(url)
        self._watching = self.open_session()

    @property
    def number(self) -> int | None:
        """Number of the last transaction of a turn, known in a turn alone."""
        return self._number

    def stored_number(self, connection: Connection) -> int:
        """Returns the number of the state that this transaction sees."""
        return int(connection.execute(select(TURNS.c.number)).scalar_one())

    def look(self, run: str | None, number: int) -> tuple[int, int]:
        """Reads the shared state's number, and how many updates a round has, at once."""
        [[found]] = self.run_transaction(self._watching, [(LOOK, {"run": run, "round": number})])
        return found[0], found[1]

    def begin_turn(self) -> None:
        """Takes the turn; raises UnavailableError while another worker keeps it."""
        with self._hold_write_lock():
            if self._owner is None:
                self._owner = self._take()
            try:
                self._lock_turn(self._owner)
            except BaseException:
                if self._owner.invalidated or self._in_turn:  # nobody would end a turn that began and then failed
                    self._release_lock()
                raise

    def _lock_turn(self, owner: Connection) -> None:
        for last in (False, True):
            try:
                if not self._in_turn:  # a session counts its locks: one taken twice would stay after one release
                    with owner.begin():
                        owner.execute(text("SELECT pg_advisory_lock(:key)"), {"key": TURN})
                    self._in_turn = True
                with owner.begin():
                    self._number = owner.execute(select(TURNS.c.number)).scalar_one()
                return
            except DBAPIError as error:
                if type(error.orig).__name__ != "LockNotAvailable":
                    raise
                if last or not self._end_silent_session(TURN):
                    raise UnavailableError(BUSY) from None

    def end_turn(self) -> None:
        """Gives the turn to others.

        It waits for any other statement: a turn that is kept stops all workers.
        """
        with self._turn:
            if self._in_turn and self._owner is not None:
                try:
                    with self._owner.begin():
                        self._owner.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": TURN})
                except SQLAlchemyError:  # the lock ends with the session
                    self._release_lock()
            self._in_turn = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        self.begin_turn()
        try:
            yield
        finally:
            self.end_turn()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Opens a transaction of the turn; raises ConnectionError without one, or after another worker's turn."""
        with self._hold_write_lock():
            if self._owner is None or not self._in_turn or self._number is None:
                raise ConnectionError("the turn was lost")
            number, self._number = self._number, None  # unknown where the commit is lost
            try:
                with commit(self._owner) as connection:
                    _raise_number(connection, number)
                    yield connection
                self._number = number + 1
            except BaseException:
                if not self._owner.invalidated:
                    self._number = number
                raise
            finally:
                if self._owner.invalidated:
                    self._release_lock()

    @contextmanager
    def leading(self) -> Iterator[Connection]:
        """Opens a transaction on the session of the worker that leads; raises ConnectionError for another's."""
        with super().writing() as connection:
            if not self.leads:
                raise ConnectionError("the lead was lost")
            yield connection

    @contextmanager
    def recording(self) -> Iterator[Connection]:
        with self.pool.begin() as connection:
            yield connection

    def open_session(self, setting: str = "") -> PipelinedSession:
        """Opens a session for one kind of writes, closed with this.

        setting: a statement for the whole session.
        """
        self._sessions.append(made := PipelinedSession(self.pool, setting))
        return made

    @staticmethod
    def run_transaction(session: PipelinedSession, statements: list[Statement]) -> list[Rows]:
        """Runs one transaction in one round trip; returns the rows of each statement.

        Raises UnavailableError while another worker keeps a lock of it, LostCommitError if the connection breaks
        meanwhile: a row may be stored, and name a body.
        """
        try:
            return session.run(statements)
        except DBAPIError as error:
            if type(error.orig).__name__ != "LockNotAvailable":
                raise
            raise UnavailableError(BUSY) from None

    def lock_arrivals(self, connection: Connection, *, alone: bool) -> None:
        """Locks the record of arrivals until the transaction ends.

        alone: against all others; if not, for an addition beside others. A row gets its number before
        its commit: a reader beside additions could see a later one first.
        """
        _lock(connection, ARRIVING, alone=alone)

    def lock_registry(self, connection: Connection) -> None:
        """Locks the registry of silos until the transaction ends."""
        _lock(connection, REGISTERING, alone=True)

    def resume(self) -> None:
        """Opens the worker's session again where it was lost."""
        with self._hold_write_lock():
            if self._owner is None:
                self._owner = self._take()

    def lead(self) -> bool:
        """Tells whether this worker leads; takes the lead of a dead or silent worker.

        A worker whose session is busy takes no lead.
        """
        if not self._turn.acquire(blocking=False):
            return self.leads
        try:
            if self._owner is None:
                self._owner = self._take()
            if self.leads:
                return True
            try:
                self.leads = self._try_lead(self._owner)
                if not self.leads and self._end_silent_session(OWNER):
                    self.leads = self._try_lead(self._owner)
            except SQLAlchemyError:
                self._release_lock()
                raise
            return self.leads
        finally:
            self._turn.release()

    def beat(self) -> None:
        """Shows the others that this worker's session is not silent; a busy one is not."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            if self._owner is not None:
                try:
                    with self._owner.begin():
                        self._read_clock(self._owner)
                except SQLAlchemyError:
                    self._release_lock()
        finally:
            self._turn.release()

    def now(self) -> float:
        """Returns seconds since the epoch by the server's clock, which all workers share.

        A worker whose own clock is ahead would end rounds early, or refuse updates of them.
        """
        return time.monotonic() + self._epoch

    def _read_clock(self, connection: Connection) -> None:
        began = time.monotonic()
        seconds = connection.execute(CLOCK).scalar_one()
        self._epoch = seconds - (began + time.monotonic()) / 2

    def notify(self) -> None:
        """Tells the worker that leads of new receipts."""
        self.run_transaction(self._watching, [TELL])

    def listen(self, wake: Callable[[str], object]) -> None:
        """Calls `wake` from a thread after every change by any worker, and after each reconnection.

        It gets RECEIPTS if there are only new receipts.
        """
        self._listener = threading.Thread(target=self._listen, args=(wake,), name="listener", daemon=True)
        self._listener.start()

    def close(self) -> None:
        self._closing.set()
        if self._listener is not None:
            self._listener.join(3 * LISTEN_SECONDS)
        for session in self._sessions:
            session.close()
        super().close()

    def _listen(self, wake: Callable[[str], object]) -> None:
        while not self._closing.is_set():
            with suppress(SQLAlchemyError, OSError), self.pool.connect() as connection:
                try:
                    self._hear(connection, wake)
                finally:
                    connection.invalidate()  # no other transaction gets what this one listens to
            self._closing.wait(LISTEN_SECONDS)

    def _hear(self, connection: Connection, wake: Callable[[str], object]) -> None:
        import psycopg  # type: ignore[import-not-found,unused-ignore]  # of the extra 'postgres'

        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text(f"LISTEN {CHANNEL}"))
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        wake("")
        with suppress(psycopg.Error):
            while not self._closing.is_set():
                for told in driver.notifies(timeout=LISTEN_SECONDS, stop_after=1):
                    wake(told.payload)

    def _try_lead(self, owner: Connection) -> bool:
        with owner.begin():
            return bool(owner.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": OWNER}).scalar_one())

    def _end_silent_session(self, key: int) -> bool:
        """Ends a silent session that holds this lock; False without one."""
        with self.pool.begin() as connection:
            ended = connection.execute(
                HOLDERS, {"key": key, "application": APPLICATION, "seconds": STALL_SECONDS}
            ).all()
        if ended:
            time.sleep(0.1)  # until the server has released its locks
        return bool(ended)

    def _take(self) -> Connection:
        """Opens the worker's session, which holds no lock yet, and makes the table of turns."""
        connection = self.pool.connect()
        try:
            with connection.begin():
                connection.execute(text("SELECT pg_advisory_lock_shared(:key)"), {"key": ALONE})
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": TURN + 1})
                self._read_clock(connection)
                SHARED.create_all(connection)
                if connection.execute(select(TURNS.c.number)).first() is None:
                    connection.execute(insert(TURNS).values(id=1, number=0))
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        return connection

    def _release_lock(self) -> None:
        self._in_turn, self.leads, self._number = False, False, None
        super()._release_lock()


def _lock(connection: Connection, key: int, *, alone: bool) -> None:
    """Takes a lock until the transaction ends; raises UnavailableError while another worker keeps it."""
    try:
        connection.execute(text(f"SELECT pg_advisory_xact_lock{'' if alone else '_shared'}(:key)"), {"key": key})
    except DBAPIError as error:
        if type(error.orig).__name__ != "LockNotAvailable":
            raise
        raise UnavailableError(BUSY) from None


def _raise_number(connection: Connection, number: int) -> None:
    raised = update(TURNS).where(TURNS.c.number == number).values(number=number + 1)
    if connection.execute(raised).rowcount != 1:
        raise ConnectionError("another worker has had the turn since")
    connection.execute(text("SELECT pg_notify(:channel, '')"), {"channel": CHANNEL})
