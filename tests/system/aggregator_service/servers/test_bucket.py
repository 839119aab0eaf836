"""Bodies in a bucket: whole or absent, held against digests, gone after the retention time; and whose they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from aggregator_service.storage.disk import Disk
from aggregator_service.storage.objects import Bucket, BucketBlobs, read_place
from shared.errors import SettingsError, UnavailableError
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import FakeClient, Running, Store, Until

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("default")]
Make = Callable[..., BucketBlobs]


@pytest.fixture
def make(tmp_path: Path, store: Store) -> Make:
    """Blobs whose copies lie in a folder of that name."""

    def blobs(name: str = "blobs", *, owner: str = "key", may_hold: bool = True) -> BucketBlobs:
        bucket, how = Bucket(read_place(store.url)), {"owner": owner, "may_hold": may_hold}
        return BucketBlobs(tmp_path / name, Disk(), bucket, **how, most=1 << 20)

    return blobs


def test_a_body_is_there_for_another_machine(make: Make, store: Store) -> None:
    blob = make().save([b"a body ", b"in pieces"])
    assert store.names() == {blob.name}
    other = make("other")
    assert other.damage(blob.name, blob.digest) is None
    assert Path(other.path(blob.name)).read_bytes() == b"a body in pieces"
    assert [path.suffix for path in other.directory.iterdir()] == [".safetensors"]


def test_a_copy_that_is_damaged_is_fetched_again(make: Make) -> None:
    blobs = make()
    blob = blobs.save([b"as it came"])
    Path(blobs.path(blob.name)).write_bytes(b"otherwise!")
    assert blobs.damage(blob.name, blob.digest) is None
    assert Path(blobs.path(blob.name)).read_bytes() == b"as it came"


def test_an_object_that_is_another_or_missing_is_told_of(make: Make, store: Store) -> None:
    blob = make().save([b"as it came"])
    object_ = store.objects()[blob.name]
    object_.put(Body=b"something else")
    assert "got " in str(make("second").damage(blob.name, blob.digest))
    object_.delete()
    third = make("third")
    assert third.damage(blob.name, blob.digest) == f"expected sha256 {blob.digest}, got no file"
    assert list(third.directory.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"as it", b"as it came, and more", b"AS IT CAME", bytes(9 << 20)])
def test_an_object_that_somebody_else_wrote_is_not_used_and_fills_no_disk(
    make: Make, store: Store, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Truncated, longer, of the same length, longer than any body: the disk took all of that before a look."""
    blob = make().save([b"as it came"])
    store.objects()[blob.name].put(Body=content)
    written, replace = list[int](), os.replace

    def note(source: str, target: Path | str) -> None:
        written.append(os.path.getsize(source))
        replace(source, target)

    monkeypatch.setattr(os, "replace", note)
    other = make("other")
    found = other.damage(blob.name, blob.digest)
    assert found is not None and found.startswith(f"expected sha256 {blob.digest}")
    assert all(size <= 1 << 20 for size in written)
    assert sum(path.stat().st_size for path in other.directory.iterdir()) <= 1 << 20
    assert other.damage(blob.name, blob.digest) is not None  # nor the next time


def test_a_bucket_that_is_missing_is_no_missing_body(make: Make, store: Store) -> None:
    """Else every update of the round would be taken for lost."""
    blobs = make()
    blob = blobs.save([b"as it came"])
    blobs.discard(blob)
    for each in store.objects().values():
        each.delete()
    with pytest.raises(UnavailableError, match="an object to be read, got ConnectionError"):
        blobs.damage(blob.name, blob.digest)


def test_what_no_row_speaks_of_is_cleared_away(make: Make, store: Store) -> None:
    blobs = make()
    kept, left = blobs.save([b"kept"]), blobs.save([b"left by a crash"])
    make("other").keep_only({kept.name})
    assert store.names() == {kept.name} != {left.name}


def test_a_place_belongs_to_one_aggregator(make: Make, store: Store) -> None:
    blob = make().save([b"ours"])
    with pytest.raises(SettingsError, match="got one of another signing key"):
        make("other", owner="another key")
    with pytest.raises(SettingsError, match="expected an empty prefix for a new database"):
        make("other", may_hold=False)
    assert store.names() == {blob.name}


def test_a_bucket_that_is_not_there_is_refused_at_the_start(tmp_path: Path, store: Store) -> None:
    del store
    with pytest.raises(UnavailableError, match="expected a bucket that can be used, got "):
        BucketBlobs(tmp_path, Disk(), Bucket("no-such-bucket/one"), owner="key", may_hold=True, most=1)


async def test_a_refused_body_never_gets_there(running: Running, store: Store) -> None:
    async with running(blobs=store.url) as federation:
        north, _ = await federation.opened()
        assert (await north.put(1, b"no tensors at all")).status_code == 422
        assert store.names() == set()
        assert list((federation.settings.state_directory / "blobs").iterdir()) == []


async def test_retention_deletes_objects_and_copies(running: Running, store: Store) -> None:
    async with running(blobs=store.url, retention_rounds=1) as federation:
        (north,) = await federation.begun("north", rounds=4)
        for number in range(1, 5):
            assert (await sent(north, number)).status_code == 201
            assert (await north.personalised(number, wait=20)).status_code == 200
        directory = federation.settings.state_directory / "blobs"
        with anyio.fail_after(LONGEST_SECONDS):  # the last update and the last state
            while not len(store.names()) == len(list(directory.iterdir())) == 2:
                await anyio.sleep(0.01)
        assert store.names() == {path.name for path in directory.iterdir()}


@pytest.mark.usefixtures("eager")
async def test_a_store_that_is_down_for_a_while_is_waited_for(running: Running, store: Store, until: Until) -> None:
    async with running(blobs=store.url) as federation:
        north, south = await federation.opened()
        assert (await sent(north, 1)).status_code == 201
        store.stop()
        try:
            refused = await sent(south, 1)
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert "s3cret" not in refused.text and "http" not in refused.json()["detail"]
            state = (await south.get("/v1/runs/current")).json()
            assert (state["standing"], state["received"]) == ("expected", 1)
        finally:
            store.start()
        await until(lambda: ready(federation))
        assert (await sent(south, 1)).status_code == 201
        assert await north.level(1, wait=20) == 1.0
        assert len(store.names()) == 3


async def sent(client: FakeClient, number: int) -> httpx.Response:
    return await client.put(number, client.update(float(number), rho=0.1, margin=0.5))


async def ready(federation: Any) -> bool:
    return bool((await federation.http.get("/health/ready")).status_code == 200)
