"""A database that several workers share: turns, the lead, receipts beside transitions, nonces."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from sqlalchemy import insert, select, text, update
from sqlalchemy.exc import DBAPIError, ProgrammingError

from aggregator_service.storage import shared_nonces
from aggregator_service.storage.arrivals import add_refused, arrivals_after
from aggregator_service.storage.database import Database
from aggregator_service.storage.engines import postgresql, shared_postgresql
from aggregator_service.storage.records import Arrival, Receipt, StoredUpdate
from aggregator_service.storage.shared_nonces import SharedNonces
from aggregator_service.storage.shared_records import SharedRecords
from aggregator_service.storage.tables import ARRIVALS, CLIENTS, RUNS
from aggregator_service.storage.write_batches import in_own_thread
from shared.errors import ClockError, SettingsError, UnavailableError, UnsettledError
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


def test_one_aggregator_alone_waits_for_workers_that_do_not_lead_too(open_worker: Open) -> None:
    """They would go on from their old state after it, for it raises no number."""
    refused = pytest.raises(SettingsError, match="another aggregator is using it")
    with open_worker("one"), refused, open_worker("alone", shared=False):
        pass


def test_a_leader_that_stopped_in_a_failed_transaction_is_replaced(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as by the limit of a wait that ended while it was stopped."""
    monkeypatch.setattr(shared_postgresql, "STALL_SECONDS", 0.5)
    with open_worker("one") as one, open_worker("two") as two:
        assert one.engine.lead()
        one.engine._owner.begin()
        with pytest.raises(ProgrammingError):
            one.engine._owner.execute(text("select nothing"))
        time.sleep(0.7)
        assert two.engine.lead()


def test_a_worker_that_waits_for_the_turn_is_neither_silent_nor_refused(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its signs of life would end with an error, and its database count as refusing."""
    monkeypatch.setattr(postgresql, "DATABASE_SECONDS", 0.05)
    with open_worker("one") as one, open_worker("two") as two, one.engine.turn(), ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(two.engine.begin_turn)
        time.sleep(0.05)
        two.engine.beat()
        assert not two.engine.lead()
        assert not waiting.done()
        with pytest.raises(UnavailableError, match="another worker has it"):
            waiting.result()


def test_a_turn_that_was_not_ended_ends_with_the_next_one(open_worker: Open) -> None:
    with open_worker("one") as one, open_worker("two") as two:
        one.engine.begin_turn()
        with one.engine.turn():
            pass
        with two.engine.turn():
            pass


def test_a_turn_that_fails_after_its_lock_is_not_kept(open_worker: Open, place: Place) -> None:
    with open_worker("one") as one, open_worker("two") as two:
        place.rows("alter table turns rename to elsewhere")
        with pytest.raises(ProgrammingError):
            one.engine.begin_turn()
        place.rows("alter table elsewhere rename to turns")
        with two.engine.turn():
            pass


def test_a_worker_starts_while_another_keeps_the_turn(open_worker: Open) -> None:
    with open_worker("one") as one, one.engine.turn(), open_worker("two") as two:
        assert held(two) == []


def begin_run(database: Database, *clients: str) -> int:
    """Stores a run and its clients; returns the number of the state."""
    rows = [{"name": name, "declaration": {}, "counts": None, "joined_at": 1.0} for name in clients]
    with database.engine.turn():
        with database.writing() as connection:
            connection.execute(insert(RUNS).values(RUN))
            connection.execute(insert(CLIENTS), rows)
        return int(database.engine.number)


def update_of(client: str, blob: str = "blob") -> StoredUpdate:
    return StoredUpdate(Receipt("run-1", 1, client, "0" * 64, 1, 1.0), {"rho": 0.1}, f"{blob}-{client}")


def arrival_of(client: str) -> Arrival:
    return Arrival(client, "update", "run-1", 1, 1, "0" * 64, 201, None, "nonce", {"fields": []})


SLOW_RECEIPTS = """
create function slow_receipt() returns trigger language plpgsql as $$ begin perform pg_sleep(2); return new; end $$;
create trigger slow_receipt before insert on updates for each row execute function slow_receipt();
"""


@pytest.mark.anyio
async def test_a_receipt_whose_commit_is_lost_may_be_stored(open_worker: Open, place: Place) -> None:
    """So that its body stays."""
    with open_worker("one") as one:
        number, records = begin_run(one, "north"), SharedRecords(one, one.workers)
        place.rows(SLOW_RECEIPTS)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, cut_off_sleeping, place)
            with pytest.raises(UnsettledError):
                await records.add_receipt(update_of("north"), number=number)


def cut_off_sleeping(place: Place) -> None:
    end = time.monotonic() + 20
    while not place.cut_off("wait_event = 'PgSleep'"):
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.anyio
async def test_a_receipt_comes_before_or_after_a_transition_and_never_with_an_old_state(open_worker: Open) -> None:
    with open_worker("one") as one, open_worker("two") as two:
        number = begin_run(one, "north", "south")
        records = [SharedRecords(database, database.workers) for database in (one, two)]
        with one.engine.turn():
            with pytest.raises(UnavailableError, match="another worker has it"):
                await records[1].add_receipt(update_of("north"), number=number)
            with one.writing() as connection:
                connection.execute(update(RUNS).values(document="{ }"))
        late = await records[1].add_receipt(update_of("north"), number=number)
        assert (late.added, late.number) == (False, number + 1)
        for at, client in zip(records, ("north", "south"), strict=True):
            assert (await at.add_receipt(update_of(client), number=number + 1)).added


@pytest.mark.anyio
async def test_what_comes_at_once_is_one_transaction_and_a_row_that_is_refused_refuses_no_other(
    open_worker: Open, place: Place
) -> None:
    clients = [f"client-{number}" for number in range(20)]
    with open_worker("one") as one:
        number, records = begin_run(one, *clients), SharedRecords(one, one.workers)
        outcomes: dict[str, object] = {}

        async def add(client: str) -> None:
            try:
                outcomes[client] = (await records.add_receipt(update_of(client), number=number)).added
            except UnavailableError as error:
                outcomes[client] = type(error)
            await records.add_arrival(arrival_of(client), now=1.0)

        async with anyio.create_task_group() as tasks:
            for client in (*clients, "stranger"):  # who has not joined has no row that the receipt could name
                tasks.start_soon(add, client)
        assert outcomes == dict.fromkeys(clients, True) | {"stranger": UnavailableError}
        assert place.rows("select count(*), count(distinct xmin::text) < 20 from arrivals") == [(21, True)]
        scalars, head = place.rows("select u.scalars, a.head from updates u join arrivals a using (client) limit 1")[0]
        assert (scalars, head) == ({"rho": 0.1}, {"fields": []})
        twice = [await records.add_receipt(update_of("client-0", blob), number=number) for blob in ("blob", "other")]
        assert not any(one.added for one in twice)


def test_statements_of_one_pipeline_are_stored_together_or_not_at_all(open_worker: Open) -> None:
    added = ("INSERT INTO runs (number, name, document) VALUES (%(number)s, %(name)s, %(document)s)", RUN)
    with open_worker("one") as one:
        session = one.workers.open_session()
        for last in (("SELECT 1 / 0", {}), added):
            with pytest.raises(DBAPIError):
                one.workers.run_transaction(session, [added, last])
            assert held(one) == []
        one.workers.run_transaction(session, [added])
        assert held(one) == ["run-1"]


@pytest.mark.anyio
async def test_a_closed_database_opens_no_session_for_what_is_still_to_be_written(
    open_worker: Open, place: Place
) -> None:
    with open_worker("one") as one:
        number, records = begin_run(one, "north"), SharedRecords(one, one.workers)
    with pytest.raises(UnavailableError, match="that can be written"):
        await records.add_receipt(update_of("north"), number=number)
    assert place.rows("select count(*) from updates") == [(0,)]


@pytest.mark.anyio
async def test_a_request_that_comes_twice_within_one_batch_is_new_once(open_worker: Open) -> None:
    """Also where the other worker's batch with it waits for the first one's commit."""
    with open_worker("one") as one, open_worker("two") as two:
        nonces = [SharedNonces(database, seconds=60, had_clients=False) for database in (one, two)]
        given = [shared_nonces.GivenNonce("north", nonce, 1000.0, 1000.0) for nonce in ("again", "other", "again")]
        with ThreadPoolExecutor(2) as threads:
            found = [outcome.result() for outcome in [threads.submit(at._store, given) for at in nonces]]
        assert sorted(sum(one[0] for one in batch) for batch in found) == [0, 2]
        assert [batch[0][0] + batch[2][0] for batch in found if any(one[0] for one in batch)] == [1]


@pytest.mark.anyio
async def test_sessions_that_the_server_has_ended_are_replaced_before_they_are_used(
    open_worker: Open, place: Place
) -> None:
    with open_worker("one") as one:
        number, records = begin_run(one, "north", "south"), SharedRecords(one, one.workers)
        nonces = SharedNonces(one, seconds=60, had_clients=False)
        for client in ("north", "south"):
            assert (await records.add_receipt(update_of(client), number=number)).added
            assert await nonces.add_nonce(client, "nonce", created=1000.0, now=1000.0)
            assert held(one) == ["run-1"]
            assert place.cut_off() > 0
            with anyio.fail_after(20):
                while place.rows("select 1 from pg_stat_activity where application_name = 'lpsfed-worker'"):
                    await anyio.sleep(0.05)


@pytest.mark.anyio
async def test_one_client_has_so_many_nonces_and_no_more(open_worker: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker counts all that are stored now and then: so many more can come in between."""
    monkeypatch.setattr(shared_nonces, "MOST", 10)
    monkeypatch.setattr(shared_nonces, "COUNTED_AFTER", 3)
    with open_worker("one") as one, open_worker("two") as two:
        nonces = [SharedNonces(database, seconds=60, had_clients=False) for database in (one, two)]
        accepted = 0
        for number in range(40):
            try:
                accepted += await nonces[number % 2].add_nonce("north", f"nonce-{number}", created=1e3, now=1e3)
            except UnavailableError:
                continue
        assert 10 <= accepted <= 10 + 2 * 3
        assert await nonces[0].add_nonce("south", "nonce", created=1e3, now=1e3)


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


def test_a_page_of_arrivals_has_no_gap_that_another_worker_fills_later(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An auditor asks for what comes after the last row and would miss it."""
    monkeypatch.setitem(postgresql.REACHING, "options", "-c lock_timeout=20s")
    head: Any = None
    one_row = Arrival("north", "join", None, None, 1, "0" * 64, 200, None, None, head)
    with open_worker("one") as one, open_worker("two") as two, ThreadPoolExecutor(1) as threads:
        with one.recording() as connection:
            one.workers.lock_arrivals(connection, alone=False)
            connection.execute(insert(ARRIVALS).values(asdict(one_row) | {"time": 1.0}))
            assert add_refused(two, replace(one_row, status=401), now=2.0)
            page = threads.submit(arrivals_after, two, after=0, limit=10)
            time.sleep(0.1)
            assert not page.done()
        assert [entry.sequence for entry in page.result().entries] == [1, 2]


SLOW = """
create function slow() returns trigger language plpgsql as $$ begin perform pg_sleep(0.002); return new; end $$;
create trigger slow before insert on nonces_seen for each row execute function slow();
"""


def test_the_same_nonces_in_two_orders_at_two_workers_are_no_deadlock(
    open_worker: Open, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One client could have the requests of others refused so."""
    monkeypatch.setitem(postgresql.REACHING, "options", "-c lock_timeout=20s -c deadlock_timeout=50ms")
    with open_worker("one") as one, open_worker("two") as two, ThreadPoolExecutor(2) as threads:
        nonces = [SharedNonces(database, seconds=60, had_clients=False) for database in (one, two)]
        place.rows(SLOW)
        given = [shared_nonces.GivenNonce("north", f"nonce-{number}", 1000.0, 1000.0) for number in range(100)]
        first = threads.submit(nonces[0]._store, given)
        second = threads.submit(nonces[1]._store, given[::-1])
        accepted = [sum(found[0] for found in one.result()) for one in (first, second)]
        assert sorted(accepted) == [0, 100]


@pytest.mark.anyio
async def test_a_worker_without_a_pause_forgets_old_nonces(open_worker: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a client would have too many, however slowly they came."""
    monkeypatch.setattr(shared_nonces, "FORGET_SECONDS", -1.0)
    with open_worker("one") as one:
        nonces = SharedNonces(one, seconds=60, had_clients=False)
        store = nonces._store

        def store_slowly(*given: Any) -> Any:
            time.sleep(0.2)
            return store(*given)

        monkeypatch.setattr(nonces._batches, "_store", in_own_thread(store_slowly))

        async def add(nonce: str, moment: float) -> None:
            assert await nonces.add_nonce("north", nonce, created=moment, now=moment)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(add, "first", 1000.0)
            await anyio.sleep(0.05)
            tasks.start_soon(add, "later", 2000.0)
        with pytest.raises(ClockError, match="is forgotten"):
            await nonces.add_nonce("north", "first", created=1000.0, now=1000.0)
