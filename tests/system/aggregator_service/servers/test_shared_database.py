"""A database that several workers share: turns, the lead, receipts beside transitions, nonces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from sqlalchemy import insert, select

from aggregator_service.storage.database import Database
from aggregator_service.storage.engines import postgresql, shared_postgresql
from aggregator_service.storage.shared_nonces import SharedNonces
from aggregator_service.storage.tables import RUNS
from shared.errors import ClockError, SettingsError, UnavailableError
from tests.support.small import small_aggregator

if TYPE_CHECKING:
    from conftest import Place

RUN = {"number": 1, "name": "run-1", "document": "{}"}
Open = Callable[..., Any]


@pytest.fixture
def open_worker(tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> Open:
    """`with open_worker("one") as database`: each in a state directory of its own."""
    monkeypatch.setitem(postgresql.REACHING, "options", "-c lock_timeout=200ms")

    @contextmanager
    def opened(name: str, *, shared: bool = True) -> Iterator[Database]:
        settings = small_aggregator(tmp_path / name, database=place.url)
        made = Database(settings.state_directory, settings.declaration(), settings.database_url(), shared=shared)
        with closing(made):
            yield made

    return opened


def held(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.scalars(select(RUNS.c.name)))


def test_only_the_worker_with_the_turn_writes(open_worker: Open) -> None:
    with open_worker("one") as one, open_worker("two") as two:
        with pytest.raises(UnavailableError, match="that can be written"), one.writing():
            pass
        with one.engine.turn():
            with pytest.raises(UnavailableError, match="another worker has it"):
                two.engine.begin_turn()
            with one.writing() as connection:
                connection.execute(insert(RUNS).values(RUN))
        with two.engine.turn():
            assert held(two) == ["run-1"]


def test_a_worker_that_lost_its_turn_while_it_was_stopped_writes_nothing(open_worker: Open, place: Place) -> None:
    with open_worker("one") as one:
        one.engine.begin_turn()
        place.cut_off("application_name = 'lpsfed-worker'")
        with open_worker("two") as two:
            with two.engine.turn(), two.writing() as connection:
                connection.execute(insert(RUNS).values(RUN))
            for _ in range(2):
                with pytest.raises(UnavailableError), one.writing() as connection:
                    connection.execute(insert(RUNS).values(RUN | {"number": 2, "name": "run-2"}))
            assert held(two) == ["run-1"]


def test_a_write_that_follows_an_old_state_is_refused(open_worker: Open, place: Place) -> None:
    """Also where a pooler or an operator has let two sessions have the turn."""
    with open_worker("one") as one, one.engine.turn():
        place.rows("update turns set number = number + 1")
        with pytest.raises(UnavailableError, match="that can be written"), one.writing() as connection:
            connection.execute(insert(RUNS).values(RUN))
        assert held(one) == []


def test_one_worker_leads_until_its_session_ends(open_worker: Open) -> None:
    with open_worker("two") as two:
        with open_worker("one") as one:
            assert one.engine.lead() and not two.engine.lead() and one.engine.lead()
        assert two.engine.lead()


def test_a_silent_leader_is_replaced_and_one_that_beats_is_not(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_postgresql, "STALL_SECONDS", 1.0)
    with open_worker("one") as one, open_worker("two") as two:
        assert one.engine.lead()
        for _ in range(4):
            time.sleep(0.4)
            one.engine.beat()
            assert not two.engine.lead()
        time.sleep(1.2)
        assert two.engine.lead()
        one.engine.beat()
        assert not one.engine.leads and not one.engine.lead()


def test_one_aggregator_alone_and_workers_exclude_each_other(open_worker: Open) -> None:
    refused = pytest.raises((SettingsError, UnavailableError), match="another")
    with open_worker("alone", shared=False), refused, open_worker("one"):
        pass
    with open_worker("one") as one:
        assert one.engine.lead()
        with pytest.raises(SettingsError, match="another aggregator is using it"), open_worker("alone", shared=False):
            pass


def test_a_receipt_comes_before_or_after_a_transition_and_never_with_an_old_state(open_worker: Open) -> None:
    with open_worker("one") as one, open_worker("two") as two:
        with one.engine.turn():
            number = one.engine.number
            with pytest.raises(UnavailableError, match="another worker has it"), two.engine.adding(number):
                pass
            with one.writing() as connection:
                connection.execute(insert(RUNS).values(RUN))
        with two.engine.adding(number) as connection:
            assert connection is None
        with two.engine.adding(number + 1) as connection, one.engine.adding(number + 1) as other:
            assert connection is not None and other is not None


@pytest.mark.anyio
async def test_a_nonce_counts_once_at_all_workers(open_worker: Open) -> None:
    with open_worker("one") as one, open_worker("two") as two:
        nonces = [SharedNonces(database, seconds=60, had_clients=False) for database in (one, two)]
        accepted = []

        async def add(at: SharedNonces, nonce: str) -> None:
            accepted.append((nonce, await at.add_nonce("north", nonce, created=1000.0, now=1000.0)))

        async with anyio.create_task_group() as tasks:
            for number in range(20):
                for at in nonces * 2:
                    tasks.start_soon(add, at, f"nonce-{number}")
        assert sorted(nonce for nonce, new in accepted if new) == sorted(f"nonce-{number}" for number in range(20))
        nonces[0]._forgotten_at = -100.0
        assert await nonces[0].add_nonce("north", "later", created=2000.0, now=2000.0)
        with pytest.raises(ClockError, match="is forgotten"):  # also with the clock set back, at the other worker
            await nonces[1].add_nonce("north", "nonce-1", created=1000.0, now=1000.0)


@pytest.mark.anyio
async def test_what_one_process_accepted_is_not_accepted_again_by_workers(open_worker: Open) -> None:
    with open_worker("one") as one:
        nonces = SharedNonces(one, seconds=60, had_clients=True)
        with pytest.raises(ClockError):
            await nonces.add_nonce("north", "nonce", created=time.time() - 1, now=time.time())
