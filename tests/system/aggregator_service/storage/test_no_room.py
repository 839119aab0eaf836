"""A real aggregator whose files may not grow any more: the operating system itself refuses, and then takes again."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shared.method.settings import AnchorSettings, MethodSettings

if TYPE_CHECKING:
    from conftest import FakeClient, Federation, Served, Until

pytestmark = [pytest.mark.anyio, pytest.mark.processes]
WIDE = MethodSettings(
    width=256, layers=2, cutoff=12, margin_strength=1.0, anchor=AnchorSettings(users=40, items=30, edges=200)
)
UNLIMITED = resource.RLIM_INFINITY


@contextmanager
def no_file_above(size: int, service: Served) -> Iterator[None]:
    """The process gets EFBIG for each byte beyond. (The signal that comes with it is ignored by the interpreter.)"""
    assert service.process is not None
    _, hard = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (size, hard))
    yield
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


async def ready(federation: Federation) -> bool:
    return (await federation.http.get("/health/ready")).status_code == 200


def files(service: Served) -> list[Path]:
    return list((service.state / "blobs").iterdir())


def largest(service: Served) -> int:
    return max(path.stat().st_size for path in service.state.iterdir())


async def require_finished(federation: Federation) -> None:
    north, south = federation.client("north"), federation.client("south")
    for client, value in ((north, 1.0), (south, 3.0)):
        assert (await sent(client, value)).status_code in (200, 201)
    assert await north.level(1, wait=20) == 2.0


async def sent(client: FakeClient, value: float) -> Any:
    return await client.put(1, client.update(value, rho=0.1, margin=0.5))


async def test_a_body_that_finds_no_room_is_refused_by_its_size_and_taken_once_there_is_room(
    served: Callable[[MethodSettings], Served], until: Until
) -> None:
    """The database still finds room: what is refused is on record."""
    service = served(WIDE)
    async with service.started() as federation:
        north, _ = await federation.opened()
        limit, size = largest(service) + 200_000, len(north.update(1.0, rho=0.1, margin=0.5))
        assert size > limit + 100_000
        with no_file_above(limit, service):
            answer = await sent(north, 1.0)
            assert (answer.status_code, answer.json()["code"]) == (507, "storage-full")
            assert answer.json()["detail"].endswith("bytes to be stored, got EFBIG")
            assert not await ready(federation)
            (recorded,) = await federation.arrivals(after=2)
            assert (recorded["status"], recorded["code"]) == (507, "storage-full")
            assert [path for path in files(service) if path.suffix != ".part"] == []
            assert (await north.get("/v1/runs/current")).json()["standing"] == "expected"
        await until(lambda: ready(federation))
        assert files(service) == []
        await require_finished(federation)


async def test_where_not_even_the_database_finds_room_nothing_is_promised_and_it_may_be_killed(
    served: Callable[[], Served], until: Until
) -> None:
    service = served()
    async with service.started() as federation:
        north, south = await federation.opened()
        assert (await sent(south, 3.0)).status_code == 201
        with no_file_above(1 << 12, service):  # the body fits, the transaction does not
            answer = await sent(north, 1.0)
            assert answer.status_code in (503, 507) and answer.json()["detail"].startswith("expected ")
            assert (await federation.client("west").join()).status_code in (503, 507)
            assert not await ready(federation)
            assert (await north.get("/v1/runs/current")).status_code in (503, 507)  # nor that it comes once
        await until(lambda: ready(federation))
        assert len(files(service)) == 1
        with no_file_above(1 << 12, service):
            assert (await sent(north, 1.0)).status_code in (503, 507)
    async with service.started() as federation:  # it was killed while there was no room
        assert (await federation.client("south").get("/v1/runs/current")).json()["standing"] == "received"
        assert len(files(service)) == 1
        await until(lambda: ready(federation))
        await require_finished(federation)
