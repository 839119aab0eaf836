"""A federation whose rows and bodies lie on servers: the same end, whatever is cut off, killed or started again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import numpy as np
import pytest

from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import ignore_progress
from simulation.experiments.in_process import simulate_experiment

if TYPE_CHECKING:
    from conftest import FakeClient, Place, Running, Served, Store, Until

# The store's libraries have warnings of their own.
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("default")]
NAMES = [f"client-{number}" for number in range(6)]


def body_of(client: FakeClient, number: int) -> bytes:
    return client.update(float(NAMES.index(client.name) + number), rho=0.1, margin=0.5)


@pytest.fixture
def servers(place: Place, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever aggregator this test starts has its rows and its bodies there."""
    monkeypatch.setenv("LPSFED_AGGREGATOR_DATABASE", place.url)
    monkeypatch.setenv("LPSFED_AGGREGATOR_BLOBS", store.url)


@pytest.mark.processes
def test_clients_that_train_end_with_the_same_bytes(
    experiment: Callable[..., Experiment], place: Place, store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here = simulate_experiment(experiment("files"), ignore_progress)
    monkeypatch.setenv("LPSFED_AGGREGATOR_DATABASE", place.url)
    monkeypatch.setenv("LPSFED_AGGREGATOR_BLOBS", store.url)
    there = simulate_experiment(experiment("servers"), ignore_progress)
    assert [s.shared_digest for s in there.statuses.values()] == [s.shared_digest for s in here.statuses.values()]
    sent = [[(p.client, p.digest, p.rho) for p in held.participants] for held in here.history.rounds]
    assert [[(p.client, p.digest, p.rho) for p in held.participants] for held in there.history.rounds] == sent
    assert place.rows("select count(*) from updates") == [(4,)] and len(store.names()) > 0
    assert not list(tmp_path.glob("servers/**/aggregator.sqlite"))


@pytest.mark.processes
@pytest.mark.usefixtures("servers")
@pytest.mark.parametrize("kill_after", [1, 4])
async def test_killed_in_the_middle_of_a_round_it_goes_on_with_what_it_had_accepted(
    served: Callable[..., Served], place: Place, store: Store, tensors: Any, kill_after: int
) -> None:
    service, accepted = served(), []
    async with service.started() as federation:
        clients = await federation.begun(*NAMES)

        async def send(client: FakeClient) -> None:
            with suppress(httpx.TransportError):  # then nobody knows whether it was accepted
                assert (await client.put(1, body_of(client, 1))).status_code == 201
                accepted.append(client.name)
                if len(accepted) == kill_after:
                    service.kill()

        async with anyio.create_task_group() as tasks:
            for client in clients[:-1]:  # with the last one the round would close, and its model would be a body too
                tasks.start_soon(send, client)
    async with service.started() as federation:
        held = place.rows("select client, digest, blob from updates")
        assert set(accepted) <= {client for client, _, _ in held}
        late = store.names() - {blob for _, _, blob in held}
        assert {blob for _, _, blob in held} <= store.names()
        assert len(late) < len(NAMES) - len(held)  # bodies that the bucket had whole at the kill, and shows afterwards
        for client in [federation.client(name) for name in NAMES]:
            answer = await client.put(1, body_of(client, 1))
            assert answer.status_code == (200 if client.name in {name for name, _, _ in held} else 201)
        mean = tensors((await federation.client(NAMES[0]).personalised(1, wait=20)).content)
        assert all(np.allclose(array, 3.5) for array in mean.values())
    async with service.started():
        assert not late & store.names()


@pytest.mark.usefixtures("servers", "eager")
async def test_a_connection_that_is_lost_costs_a_moment(running: Running, place: Place, until: Until) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        for number in (1, 2):
            assert (await sent(north, number)).status_code == 201
            assert place.cut_off() >= 1
            refused = await sent(south, number)
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert "/" not in refused.json()["detail"]
            await until(lambda: ready(federation))
            assert (await sent(south, number)).status_code == 201
            assert await north.level(number, wait=20) == number + 0.5
        assert (await federation.history())["phase"] == "finished"


@pytest.mark.usefixtures("servers", "eager")
async def test_a_server_that_is_down_for_a_while_is_waited_for(running: Running, place: Place, until: Until) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        assert (await sent(north, 1)).status_code == 201
        place.server.stop()
        try:
            for _ in range(2):
                assert (await sent(south, 1)).status_code == 503
            assert not await ready(federation)
            told = await federation.http.get("/health/ready")
            assert "s3cret" not in told.text
        finally:
            place.server.start()
        await until(lambda: ready(federation))
        assert (await sent(south, 1)).status_code == 201
        assert await north.level(1, wait=20) == 1.5


@pytest.mark.usefixtures("servers", "eager")
@pytest.mark.parametrize("stored", [True, False])
async def test_an_update_whose_commit_was_lost_counts_once(
    running: Running, monkeypatch: pytest.MonkeyPatch, until: Until, stored: bool
) -> None:
    """The client is told to come again, and does; what was stored is known by then."""
    import psycopg

    async with running() as federation:
        north, south = await federation.opened()
        assert (await sent(south, 1)).status_code == 201
        dialect = federation.app.state.coordinator.federation.archive.database.engine.pool.dialect
        commit, lost = dialect.do_commit, []

        def lose(connection: Any) -> None:
            """The commit of the update, which comes first."""
            if lost:
                return commit(connection)
            lost.append(True)
            if stored:
                commit(connection)
            connection.driver_connection.close()
            raise psycopg.OperationalError("the server has gone")

        monkeypatch.setattr(dialect, "do_commit", lose)
        assert (await sent(north, 1)).status_code == 503
        await until(lambda: ready(federation))
        assert (await sent(north, 1)).status_code == (200 if stored else 201)
        assert await north.level(1, wait=20) == 1.5
        assert (await federation.history())["rounds"][0]["missing"] == []


@pytest.mark.usefixtures("servers")
async def test_another_machine_goes_on_with_the_database_the_bucket_and_the_keys(
    running: Running, store: Store, tmp_path: Path
) -> None:
    """What the first machine had copies of is fetched from the bucket."""
    async with running() as federation:
        north, south = await federation.opened()
        for client in (north, south):
            assert (await sent(client, 1)).status_code == 201
        before = await north.personalised(1, wait=20)
        assert (await sent(north, 2)).status_code == 201
    for blob in (tmp_path / "state" / "blobs").iterdir():
        blob.unlink()
    async with running() as federation:
        north, south = federation.client("north"), federation.client("south")
        assert (await north.personalised(1)).content == before.content
        assert (await sent(south, 2)).status_code == 201
        assert await north.level(2, wait=20) == 2.5
        copies = {path.name: path.read_bytes() for path in (tmp_path / "state" / "blobs").iterdir()}
        objects = store.objects()
        assert copies and all(
            hashlib.sha256(objects[name].get()["Body"].read()).digest() == hashlib.sha256(content).digest()
            for name, content in copies.items()
        )


async def sent(client: FakeClient, number: int) -> httpx.Response:
    """north sends the number of the round, south one more."""
    return await client.put(number, client.update(float(number + (client.name == "south")), rho=0.1, margin=0.5))


async def ready(federation: Any) -> bool:
    return bool((await federation.http.get("/health/ready")).status_code == 200)
