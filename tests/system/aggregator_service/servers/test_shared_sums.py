"""Sums that workers share on one PostgreSQL: killed, late, lied about, and to the bytes of one process."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aggregator_service.aggregation import computation, fetched_blocks, shared_sums
from aggregator_service.aggregation.shared_sums import SharedSum
from aggregator_service.storage import body_parts, sum_blocks
from aggregator_service.storage.body_parts import DamagedUpdatesError
from aggregator_service.storage.engines.postgresql import OWNER, read_url
from aggregator_service.storage.locations import Archive
from aggregator_service.storage.run_store import blob_names
from aggregator_service.storage.sum_blocks import SumBlocks
from benchmarks.speed.sum_updates import MeasuredRound, sum_plainly, write_updates
from shared.errors import ConflictError, DamagedError, UnavailableError
from shared.method.parameters import digest_arrays
from shared.method.settings import method_settings
from shared.protocol.wire import open_parameters

if TYPE_CHECKING:
    from conftest import Place, Store

pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("default")]
UPDATES = 5
MakeRound = Callable[..., tuple[MeasuredRound, str]]
RULES = {"mean": 0, "median": 0, "trimmed_mean": 1}


def make_small(patched: pytest.MonkeyPatch) -> None:
    """Rounds of any size are shared, in groups of two bodies, and a silent worker's block is free after a second."""
    patched.setattr(shared_sums, "LEAST_SHARED", 0)
    patched.setattr(shared_sums, "GROUP", 2)
    patched.setattr(shared_sums, "LEAST_FETCHED", 64)
    patched.setattr(fetched_blocks, "GATHERED", 512)
    patched.setattr(body_parts, "PART_BYTES", 256)
    patched.setattr(shared_sums, "RENEW_SECONDS", 0.2)
    patched.setattr(sum_blocks, "CLAIM_SECONDS", 1.0)
    patched.setattr("shared.strategies.blockwise.LEAST_BLOCK", 64)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


FOLDER, BUCKET = "folder", "bucket"
in_a_bucket = pytest.mark.parametrize("bodies", [BUCKET], indirect=True)


@pytest.fixture
def bodies(request: pytest.FixtureRequest) -> str | None:
    """The place of the bodies at the store; None for a folder."""
    return str(request.getfixturevalue("store").url) if getattr(request, "param", FOLDER) == BUCKET else None


@pytest.fixture
def make_round(tmp_path: Path, place: Place, bodies: str | None) -> MakeRound:
    """A closed round of five updates, and the digest of its plain sum."""

    def made(rule: str = "mean") -> tuple[MeasuredRound, str]:
        method = method_settings(width=4).model_copy(update={"aggregate": rule, "tolerated": RULES[rule]})
        given = MeasuredRound(str(tmp_path), read_url(place.url), method, UPDATES, bodies)
        _, by_client = write_updates(given, UPDATES)
        return given, sum_plainly(given, by_client)[0]

    return made


def lead(archive: Archive) -> Archive:
    assert archive.database.workers is not None and archive.database.workers.lead()
    return archive


def sum_round(given: MeasuredRound, archive: Archive) -> str:
    """The digest of the state, as the leader computes it."""
    assert computation.damaged_updates(archive, given.run) == []
    state = computation.aggregate_round(archive, given.run)
    assert {one.name for one in archive.blobs.directory.iterdir()} - blob_names(archive.database) == {state.blob}
    return digest_arrays(open_parameters(archive.blobs.path(str(state.blob)))[1].arrays)


def take_blocks(archive: Archive, ended: threading.Event) -> int:
    """What another worker does until the round is over; the number of blocks that it took."""
    taken = 0
    while not ended.wait(0.005):
        take_block = computation.join_shared_sum(archive)
        while take_block is not None and take_block():
            taken += 1
    return taken


@pytest.mark.parametrize(
    ("bodies", "rule", "workers"),
    [*((FOLDER, rule, workers) for rule in RULES for workers in (1, 2, 3)), *((BUCKET, rule, 2) for rule in RULES)],
    indirect=["bodies"],
)
def test_workers_sum_to_the_bytes_of_one_process(make_round: MakeRound, rule: str, workers: int) -> None:
    given, wanted = make_round(rule)
    ended = threading.Event()
    with ExitStack() as opened, ThreadPoolExecutor(3) as threads:
        archives = [opened.enter_context(given.open(f"worker-{number}")) for number in range(workers)]
        lead(archives[0])
        others = [threads.submit(take_blocks, one, ended) for one in archives[1:]]
        try:
            assert sum_round(given, archives[0]) == wanted
        finally:
            ended.set()
        assert all(one.result() >= 0 for one in others)


def run_until_killed(given: MeasuredRound, where: str) -> None:
    """Works on blocks as another worker does, and kills itself at a point of the second step, the sum."""
    patched = pytest.MonkeyPatch()
    make_small(patched)

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if where == "claimed":
        patched.setattr(SharedSum, "_store_parts", die)
    elif where == "in the block":
        patched.setattr(shared_sums, "combine_block", die)
    elif where == "checked":
        patched.setattr(SharedSum, "_check", die)
    else:
        patched.setattr(SumBlocks, "store", lambda _, __, result: die() if "blob" in result else None)
    with given.open("worker-1") as archive:
        take_blocks(archive, threading.Event())


@pytest.mark.parametrize(
    ("bodies", "where"),
    [
        *((FOLDER, where) for where in ("checked", "claimed", "in the block", "written")),
        *((BUCKET, where) for where in ("in the block", "written")),
    ],
    indirect=["bodies"],
)
def test_a_worker_that_is_killed_leaves_its_block_to_another(
    make_round: MakeRound, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, wanted = make_round()
    process = multiprocessing.get_context("spawn").Process(target=run_until_killed, args=(given, where))
    take_block, step = SharedSum.take_block, "check" if where == "checked" else "sum"

    def wait(self: SharedSum, plan: sum_blocks.BlockPlan) -> bool:
        """The leader leaves the blocks of the step to the other until that has died."""
        if plan.step == step:
            process.join(60)
            assert process.exitcode == -signal.SIGKILL
        return take_block(self, plan)

    monkeypatch.setattr(SharedSum, "take_block", wait)
    with given.open("worker-0") as archive:
        lead(archive)
        process.start()
        began = time.monotonic()
        try:
            assert computation.damaged_updates(archive, given.run) == []
            state = computation.aggregate_round(archive, given.run)
        finally:
            process.kill()
            process.join()
        assert time.monotonic() - began < 60
        assert digest_arrays(open_parameters(archive.blobs.path(str(state.blob)))[1].arrays) == wanted


def truncate(archive: Archive, told: dict[str, Any]) -> None:
    os.truncate(archive.blobs.path(told["blob"]), 20)


def change_byte(archive: Archive, told: dict[str, Any]) -> None:
    path = Path(archive.blobs.path(told["blob"]))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def remove(archive: Archive, told: dict[str, Any]) -> None:
    Path(archive.blobs.path(told["blob"])).unlink()


def claim_other_spans(archive: Archive, told: dict[str, Any]) -> None:
    del archive
    told["spans"][0][1] += 1


def put_another(archive: Archive, told: dict[str, Any]) -> None:
    """The whole, sound body of a client in its place, with its digest."""
    blob = archive.blobs.save([b"no safetensors at all"])
    told |= {"blob": blob.name, "digest": blob.digest}


@pytest.mark.parametrize(
    ("bodies", "harm"),
    [
        *((FOLDER, harm) for harm in (truncate, change_byte, remove, claim_other_spans, put_another)),
        (BUCKET, put_another),
    ],
    indirect=["bodies"],
)
def test_a_block_that_is_not_as_it_was_said_is_computed_again(
    make_round: MakeRound, harm: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    given, wanted = make_round()
    results = SumBlocks.results
    with given.open("worker-0") as archive:

        def harmed(self: SumBlocks, plan: sum_blocks.BlockPlan) -> list[str]:
            found = results(self, plan)
            if plan.step == "check":
                return found
            told = json.loads(found[1])
            harm(archive, told)
            return [found[0], json.dumps(told), *found[2:]]

        monkeypatch.setattr(SumBlocks, "results", harmed)
        lead(archive)
        assert computation.damaged_updates(archive, given.run) == []
        state = computation.aggregate_round(archive, given.run)
        assert digest_arrays(open_parameters(archive.blobs.path(str(state.blob)))[1].arrays) == wanted


def test_a_damaged_body_is_named_whoever_checks_it(make_round: MakeRound) -> None:
    given, _ = make_round()
    with given.open("worker-0") as archive:
        lead(archive)
        held = computation._stored_round_updates(archive, given.run)
        change_byte(archive, {"blob": held[3].blob})
        assert [one.receipt.client for one in computation.damaged_updates(archive, given.run)] == ["client-000003"]


def test_a_body_that_changes_after_its_check_is_not_summed(
    make_round: MakeRound,
) -> None:
    given, _ = make_round()
    with given.open("worker-0") as archive:
        lead(archive)
        assert computation.damaged_updates(archive, given.run) == []
        change_byte(archive, {"blob": computation._stored_round_updates(archive, given.run)[0].blob})
        with pytest.raises(DamagedError):
            computation.aggregate_round(archive, given.run)


def test_a_worker_with_another_list_of_updates_takes_no_block(make_round: MakeRound, place: Place) -> None:
    given, _ = make_round()
    with given.open("worker-0") as first, given.open("worker-1") as second:
        blocks = SumBlocks(first.database, lead(first).database.workers)  # type: ignore[arg-type]
        plan = blocks.publish("run-1", 1, "check", blocks=3, updates="of a round without a client", known="")
        take_block = computation.join_shared_sum(second)
        assert take_block is not None and take_block() is False
        assert place.rows("select count(*) from sum_blocks where claimed_at is null and result is null") == [(3,)]
        assert blocks.count_open(plan) == 3


def test_a_block_has_one_result_and_only_of_its_newest_claim(make_round: MakeRound, place: Place) -> None:
    given, _ = make_round()
    with given.open("worker-0") as first, given.open("worker-1") as second:
        one, two = (SumBlocks(each.database, each.database.workers) for each in (lead(first), second))  # type: ignore[arg-type]
        plan = one.publish("run-1", 1, "check", blocks=1, updates="", known="")
        late = two.claim(plan)
        assert late is not None and one.claim(plan) is None
        two.renew(late)
        place.rows("update sum_blocks set claimed_at = claimed_at - 2")
        claim = one.claim(plan)
        assert claim is not None and claim.count == 2
        for refused in (two.renew, two.release):
            with pytest.raises(ConflictError):
                refused(late)
        with pytest.raises(ConflictError):
            two.store(late, "[1]")
        one.store(claim, "[2]")
        with pytest.raises(ConflictError):
            one.store(claim, "[3]")
        assert one.results(plan) == ["[2]"] and one.count_open(plan) == 0


def test_a_leader_that_was_replaced_neither_shares_nor_ends_a_sum(
    make_round: MakeRound, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session has ended while it waited for a block: the next leader's plan stays as it is."""
    given, wanted = make_round()
    waits, goes_on = threading.Event(), threading.Event()
    take_block = SharedSum.take_block
    stale = threading.local()

    def wait(self: SharedSum, plan: sum_blocks.BlockPlan) -> bool:
        if getattr(stale, "is_so", False):
            waits.set()
            assert goes_on.wait(30)
        return take_block(self, plan)

    def work() -> None:
        stale.is_so = True
        computation.aggregate_round(first, given.run)

    monkeypatch.setattr(SharedSum, "take_block", wait)
    with given.open("worker-0") as first, given.open("worker-1") as second, ThreadPoolExecutor(1) as threads:
        lead(first)
        worked = threads.submit(work)
        assert waits.wait(30)
        lock = f"classid::bigint = {OWNER >> 32} and objid::bigint = {OWNER & 0xFFFFFFFF}"
        assert place.cut_off(f"pid in (select pid from pg_locks where locktype = 'advisory' and {lock})") == 1
        deadline = time.monotonic() + 20
        while not second.database.workers.lead():  # type: ignore[union-attr]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        blocks = SumBlocks(second.database, second.database.workers)  # type: ignore[arg-type]
        plan = blocks.publish("run-1", 1, "sum", blocks=1, updates="", known="")
        goes_on.set()
        with pytest.raises(UnavailableError, match="another worker leads"):
            worked.result(30)
        assert blocks.count_open(plan) == 1
        with pytest.raises(UnavailableError):
            SumBlocks(first.database, first.database.workers).publish(  # type: ignore[arg-type]
                "run-1", 1, "sum", blocks=2, updates="", known=""
            )
        assert blocks.count_open(plan) == 1
        assert sum_round(given, second) == wanted


@in_a_bucket
@pytest.mark.parametrize("why", ["no digests of parts", "distances"])
def test_workers_with_a_bucket_leave_a_sum_that_needs_whole_bodies_to_the_leader(
    make_round: MakeRound, place: Place, why: str
) -> None:
    """Of an update that was received before there were any, and of one whose distance is limited."""
    given, wanted = make_round()
    if why == "distances":
        given = replace(given, method=given.method.model_copy(update={"quarantine_factor": 1e6}))
    else:
        place.rows("update updates set parts = null where client = 'client-000003'")
    with given.open("worker-0") as archive:
        assert sum_round(given, lead(archive)) == wanted
    assert place.rows("select count(*) from pg_tables where tablename = 'sum_plans'") == [(0,)]


@in_a_bucket
@pytest.mark.parametrize("content", ["changed", "shorter", "empty", "another's", "gone"])
def test_an_object_that_is_not_as_it_came_is_named_and_not_summed(
    make_round: MakeRound, place: Place, store: Store, content: str
) -> None:
    given, _ = make_round()
    blobs = [blob for (blob,) in place.rows("select blob from updates order by client")]
    objects = store.objects()
    sound = objects[blobs[3]].get()["Body"].read()
    if content == "gone":
        objects[blobs[3]].delete()
    else:
        other = objects[blobs[2]].get()["Body"].read()
        changed = sound[:-1] + bytes([sound[-1] ^ 1])
        harmed = {"changed": changed, "shorter": sound[:-1], "empty": b"", "another's": other}
        objects[blobs[3]].put(Body=harmed[content])
    with given.open("worker-0") as archive:
        assert computation.damaged_updates(lead(archive), given.run) == []
        with pytest.raises(DamagedUpdatesError) as raised:
            computation.aggregate_round(archive, given.run)
    assert [one.receipt.client for one in raised.value.updates] == ["client-000003"]


@in_a_bucket
def test_a_missing_bucket_is_no_damage(make_round: MakeRound, store: Store) -> None:
    given, _ = make_round()
    with given.open("worker-0") as archive:
        lead(archive)
        for each in store.objects().values():
            each.delete()
        with pytest.raises(UnavailableError, match="parts of objects to be read, got ConnectionError"):
            computation.aggregate_round(archive, given.run)


@in_a_bucket
@pytest.mark.parametrize("harm", ["copy", "digests"])
def test_a_sound_object_is_summed_whatever_a_copy_or_its_digests_are(
    make_round: MakeRound, place: Place, harm: str
) -> None:
    given, wanted = make_round()
    (blob,) = place.rows("select blob from updates where client = 'client-000003'")[0]
    if harm == "digests":
        place.rows("update updates set parts = substr(parts, 33) where client = 'client-000003'")
    with given.open("worker-0") as archive:
        if harm == "copy":
            Path(archive.blobs.path(blob)).write_bytes(b"what a disk has made of it")
        assert computation.damaged_updates(lead(archive), given.run) == []
        state = computation.aggregate_round(archive, given.run)
        assert digest_arrays(open_parameters(archive.blobs.path(str(state.blob)))[1].arrays) == wanted
