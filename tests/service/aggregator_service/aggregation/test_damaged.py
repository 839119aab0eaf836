"""Files that the disk no longer gives back as they were stored: nothing is computed from them, and somebody is told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from aggregator_service.aggregation import computation
from aggregator_service.rounds.run import Run
from aggregator_service.storage.locations import Archive
from shared.method.parameters import State
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import FakeClient, Federation, Running, Until

pytestmark = pytest.mark.anyio
Harm = Callable[[Path], object]
SCALARS = {"rho": 0.1, "margin": 0.5}
AGAIN = "round 1: the aggregator's disk damaged your update; send one again"


def flip(path: Path) -> None:
    """One bit of the last number."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


HARMS: dict[str, Harm] = {"a bit is another": flip, "its end is gone": shorten, "it is gone": Path.unlink}
ALL_HARMS = pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)


def stored(federation: Federation, body: bytes) -> Path:
    """The file with this content."""
    files = (federation.settings.state_directory / "blobs").iterdir()
    (found,) = [path for path in files if path.read_bytes() == body]
    return found


def the_state(federation: Federation, *bodies: bytes) -> Path:
    """The one file that holds none of these bodies."""
    files = (federation.settings.state_directory / "blobs").iterdir()
    (found,) = [path for path in files if path.read_bytes() not in bodies]
    return found


async def require_asked_again(client: FakeClient) -> None:
    answer = await client.personalised(1, wait=20)
    assert (answer.status_code, answer.json()["code"], answer.json()["detail"]) == (409, "conflict", AGAIN)
    assert await client.standing() == "expected"


@ALL_HARMS
async def test_a_damaged_update_is_asked_for_again_while_its_round_can_wait(running: Running, harm: Harm) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        mine, theirs = north.update(1.0, **SCALARS), south.update(3.0, **SCALARS)
        assert (await north.put(1, mine)).status_code == 201
        harm(stored(federation, mine))
        assert (await south.put(1, theirs)).status_code == 201
        await require_asked_again(north)
        assert (await south.personalised(1, wait=0)).status_code == 204
        assert await south.standing() == "received"
    async with running() as federation:  # what is lost is known after a restart too
        north, south = federation.client("north"), federation.client("south")
        await require_asked_again(north)
        assert (await north.put(1, mine)).status_code == 201
        assert await north.level(1) == 2.0
        assert (await south.put(1, theirs)).status_code == 200


async def test_whoever_waits_for_the_round_is_told_at_once_to_send_again(running: Running) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        await north.put(1, north.update(1.0, **SCALARS))
        flip(stored(federation, north.update(1.0, **SCALARS)))
        told: list[httpx.Response] = []

        async def wait() -> None:
            told.append(await north.personalised(1, wait=25))

        with anyio.fail_after(LONGEST_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await anyio.sleep(0.05)
                await south.put(1, south.update(3.0, **SCALARS))
        assert told[0].json()["detail"] == AGAIN
        # Another update than before is as good: the first one counts for nothing any more.
        assert (await north.put(1, north.update(5.0, **SCALARS))).status_code == 201
        assert (await south.personalised(1)).status_code == 200


async def test_past_its_deadline_a_round_with_a_quorum_does_without_a_damaged_update(running: Running) -> None:
    async with running() as federation:
        north, south, west = await federation.joined("north", "south", "west")
        await federation.start_run(rounds=2, clients=3, quorum=2)
        for client, value in ((north, 1.0), (south, 3.0), (west, 5.0)):
            if client is west:
                flip(stored(federation, north.update(1.0, **SCALARS)))
            await client.put(1, client.update(value, **SCALARS))
        await require_asked_again(north)
        federation.clock.pass_the_deadline()
        assert await south.level(1) == 4.0
        history = await federation.history()
        assert (history["phase"], history["rounds"][0]["missing"]) == ("open", ["north"])


@pytest.mark.parametrize("before_the_close", [True, False])
async def test_without_a_quorum_the_run_fails_and_says_whose_update_was_damaged_and_what_to_do(
    running: Running, until: Until, before_the_close: bool
) -> None:
    """The deadline passes while the client is asked again, or before the damage is even found."""
    async with running() as federation:
        north, south, west = await federation.joined("north", "south", "west")
        await federation.start_run(rounds=2, clients=3, quorum=2)
        await north.put(1, north.update(1.0, **SCALARS))
        await south.put(1, south.update(3.0, **SCALARS))
        flip(stored(federation, north.update(1.0, **SCALARS)))
        flip(stored(federation, south.update(3.0, **SCALARS)))
        if before_the_close:
            await west.put(1, west.update(5.0, **SCALARS))
            await require_asked_again(north)
        federation.clock.pass_the_deadline()

        async def ended() -> bool:
            return (await federation.history())["phase"] == "failed"

        await until(ended)
        history = await federation.history()
        came, missing = (1, "north, south") if before_the_close else (0, "north, south, west")
        assert (history["phase"], history["reason"]) == (
            "failed",
            f"round 1: {came} of 2 updates at the deadline, missing {missing}; "
            "the disk had damaged what north, south had sent: check it, then start a new run",
        )


async def closed(federation: Federation, *clients: FakeClient, number: int = 1) -> list[bytes]:
    """The bodies of a round that these clients have been through."""
    bodies = [client.update(float(place), **SCALARS) for place, client in enumerate(clients)]
    for client, body in zip(clients, bodies, strict=True):
        assert (await client.put(number, body)).status_code == 201
    await federation.app.state.coordinator.federation.round_loop.wait_until(
        lambda: federation.app.state.coordinator.federation.round_loop.run.is_aggregated(number), 10
    )
    return bodies


@ALL_HARMS
async def test_a_damaged_state_ends_the_run_when_the_next_round_needs_it(running: Running, harm: Harm) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        bodies = await closed(federation, north, south)
        harm(the_state(federation, *bodies))
        for client in (north, south):
            assert (await client.put(2, client.update(9.0, **SCALARS))).status_code == 201
        assert (await north.personalised(2)).status_code == 409
        require_failed(await federation.history(), "round 2 could not be aggregated: run-1: the state after round 1 is")


def require_failed(history: dict[str, Any], begin: str) -> None:
    """The run has ended for a reason that says what was expected, what came and what to do, and no path."""
    assert history["phase"] == "failed"
    reason: str = history["reason"]
    assert reason.startswith(begin) and "damaged: expected sha256 " in reason and ", got " in reason
    assert reason.endswith("; check the aggregator's disk, then start a new run") and "/" not in reason


def require_damaged(answer: httpx.Response) -> None:
    assert (answer.status_code, answer.json()["code"]) == (500, "damaged")
    assert "/" not in answer.json()["detail"]


@ALL_HARMS
async def test_a_damaged_state_is_never_answered_with_and_ends_the_run(running: Running, harm: Harm) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        harm(the_state(federation, *await closed(federation, north, south)))
        require_damaged(await north.personalised(1))
        require_failed(await federation.history(), "run-1: the state after round 1 is")
        assert await north.standing() == "absent"
        assert (await federation.start_run(rounds=1, clients=2)).json()["run"] == "run-2"


@ALL_HARMS
async def test_ones_own_damaged_update_is_never_answered_with_and_ends_the_run(running: Running, harm: Harm) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        first, _ = await closed(federation, north, south)
        harm(stored(federation, first))
        require_damaged(await north.personalised(1))
        require_failed(await federation.history(), "run-1: the update of north of round 1 is")


async def test_a_finished_run_stays_finished_and_what_is_damaged_of_it_is_refused(running: Running) -> None:
    async with running() as federation:
        north, south = await federation.joined("north", "south")
        await federation.start_run(rounds=1, clients=2)
        bodies = await closed(federation, north, south)
        assert (await north.personalised(1)).status_code == 200
        flip(the_state(federation, *bodies))
        require_damaged(await north.personalised(1))
        assert (await federation.history())["phase"] == "finished"
        assert "lpsfed_aggregator_damaged_blobs_total 1.0" in (await federation.http.get("/metrics")).text


async def test_a_file_is_read_whole_once_a_round_however_many_ask(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: list[object] = []
    whole = hashlib.file_digest

    def counted(file: Any, kind: str) -> Any:
        digests.append(file.name)
        return whole(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    async with running() as federation:
        north, south = await federation.opened()
        await closed(federation, north, south)
        for client in (north, south) * 3:
            assert (await client.personalised(1)).status_code == 200
        assert len(digests) == len(set(digests)) == 3  # two updates, and the state after them


async def test_a_state_s_row_is_read_once_a_round_however_many_ask(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the scalars of all clients: read for each answer, a round would take the square of the clients."""
    loaded: list[int] = []
    load = computation.load_state

    def counted(archive: Archive, run: Run, number: int, *, most_in_memory: int) -> State:
        loaded.append(number)
        return load(archive, run, number, most_in_memory=most_in_memory)

    async with running() as federation:
        north, south = await federation.opened()
        await closed(federation, north, south)
        monkeypatch.setattr(computation, "load_state", counted)
        for client in (north, south) * 3:
            assert (await client.personalised(1)).status_code == 200
        assert loaded == [1]
