"""A change of the aggregator's store -> something that happens after its first commit.

A change is one transaction, so all of it is durable then, and nobody has heard of any of it. Were it two, it would be
half done. What is patched is imported where it is patched, as in `points`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Committing:
    """The database as the store uses it; `then` happens after each commit."""

    database: Any
    then: Callable[[], None]

    @contextmanager
    def writing(self) -> Iterator[Any]:
        with self.database.writing() as connection:
            yield connection
        self.then()


def after_first_commit(meant: Callable[[Any], bool], then: Callable[[], None]) -> None:
    """Patch how a run is saved. `meant`: is it this change, by the run that it makes durable?"""
    from aggregator_service.rounds import run as run_document

    real = run_document.save_run

    def save_run(database: Any, run: Any, **what: Any) -> None:
        real(Committing(database, then) if meant(run) else database, run, **what)

    run_document.save_run = save_run
