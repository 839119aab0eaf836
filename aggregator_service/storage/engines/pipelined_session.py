"""Session of one kind of writes, whose transactions cost one round trip each.

It runs one transaction at a time, also for several threads, and is kept between them. All statements of a transaction
are sent before the first answer is waited for, and each is prepared once, because its text is always the same. The
server takes what comes up to the end of a pipeline as one transaction, so that none has to be begun or committed.
"""

from __future__ import annotations

import select
import threading
from contextlib import suppress
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from aggregator_service.storage.disk import LostCommitError

Statement = tuple[str, dict[str, Any]]
Rows = list[tuple[Any, ...]]
PREPARED_AT = 1  # executions before a statement is prepared


class PipelinedSession:
    """Session with a PostgreSQL server that sends each transaction at once.

    It is opened when it is first needed, and again after a loss. setting: a statement for the whole session.
    """

    def __init__(self, pool: Engine, setting: str = "") -> None:
        self._pool, self._setting = pool, setting
        self._driver: Any = None
        self._ended, self._alone = False, threading.Lock()

    def run(self, statements: list[Statement]) -> list[Rows]:
        """Runs one transaction; returns the rows of each statement.

        Raises DBAPIError, after which nothing of it is stored, or LostCommitError: that is unknown.
        """
        import psycopg  # type: ignore[import-not-found,unused-ignore]  # of the extra 'postgres'

        with self._alone:
            try:
                driver = self._open()
                with driver.pipeline():  # without autocommit it would begin a transaction of its own
                    cursors = [driver.execute(text, values) for text, values in statements]
            except psycopg.Error as error:
                if self._driver is not None and self._driver.closed:
                    raise LostCommitError("the connection was lost") from error
                raise DBAPIError(None, None, error) from error
        return [cursor.fetchall() if cursor.description else [] for cursor in cursors]

    def close(self) -> None:
        """Closes it for good: what is still to be written is refused."""
        self._ended = True
        self._drop()

    def _drop(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            with suppress(Exception):  # it is lost already
                driver.close()

    def _open(self) -> Any:
        if self._driver is not None and (self._driver.closed or not is_connected(self._driver)):
            self._drop()
        if self._ended:
            raise ConnectionError("the database was closed")
        if self._driver is None:
            borrowed = self._pool.raw_connection()
            driver: Any = borrowed.driver_connection
            borrowed.detach()
            driver.autocommit, driver.prepare_threshold = True, PREPARED_AT
            if self._setting:
                driver.execute(self._setting)
            self._driver = driver
        return self._driver


def is_connected(driver: Any) -> bool:
    """Tells whether a session that has been idle is not lost.

    A server that has ended it has sent something: only then a round trip is needed to find out.
    """
    waiting = select.poll()
    waiting.register(driver.fileno(), select.POLLIN)
    if not waiting.poll(0):
        return True
    with suppress(Exception):
        driver.execute("SELECT 1")
        if not driver.autocommit:
            driver.rollback()
        return True
    return False
