"""A step of a round -> a worker that ends there by SIGKILL, once: patched into each worker before it starts.

`python -m tests.system.faults.worker_steps` is `python -m aggregator_service` with these patches. A file names the step
and the process that dies there; while there is none, nobody does. Each patch is one place in the service's own code.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aggregator_service import __main__ as service
from aggregator_service import coordinator
from aggregator_service.aggregation import computation, shared_sums
from aggregator_service.aggregation.shared_sums import SharedSum
from aggregator_service.rounds import run as run_document
from aggregator_service.rounds.round_loop import RoundLoop
from aggregator_service.storage import disk, run_store
from aggregator_service.storage.disk import Blob, Blobs, Spool
from aggregator_service.storage.engines.shared_postgresql import SharedPostgreSQL
from aggregator_service.storage.objects import Bucket, BucketBlobs
from aggregator_service.storage.shared_nonces import SharedNonces
from aggregator_service.storage.shared_records import GivenReceipt, SharedRecords
from aggregator_service.storage.sum_blocks import SumBlocks

FOLDER = "LPSFED_TESTS_STEPS"  # the variable with the folder of the files
ARMED, LEADER = "armed", "leader"
ROUND = {False: 2, True: 1}
"""In which it happens, by whether the federation is secure."""
STATE = threading.local()  # `written`: whether this thread writes the state of that round


def armed() -> tuple[str, int]:
    """The step and the process that dies there; an empty step if nobody does."""
    try:
        told = json.loads((Path(os.environ[FOLDER]) / ARMED).read_text())
    except FileNotFoundError:
        return "", 0
    return told["step"], told["pid"]


def arm(folder: Path, step: str, pid: int) -> None:
    """In the test: this process dies at this step."""
    part = folder / f"{ARMED}.part"
    part.write_text(json.dumps({"step": step, "pid": pid}))
    part.rename(folder / ARMED)


def dies_at(step: str) -> bool:
    return armed() == (step, os.getpid())


def strike(step: str) -> None:
    if dies_at(step):
        (Path(os.environ[FOLDER]) / ARMED).unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def around(owner: Any, name: str, step: Callable[..., str]) -> None:
    """Before and after each call of this function. step: its name for what the function is given."""
    real = getattr(owner, name)

    def called(*given: Any, **named: Any) -> Any:
        what = step(*given, **named)
        strike(f"{what}: before")
        result = real(*given, **named)
        strike(f"{what}: after")
        return result

    setattr(owner, name, called)


def name_transition(_: Any, run: Any, *, before: Any = None, **__: Any) -> str:
    if before is None or before.name != run.name:
        return "start of a run"
    if before.phase == "waiting" and len(run.enrolled) > len(before.enrolled):
        return "enrolment"
    if run.round > before.round or before.phase == "aggregated":
        return "row of the state" if before.round == ROUND[before.pledge is not None] else ""
    if before.exchange is not None and (run.exchange, run.phase) != (before.exchange, before.phase):
        phase = before.exchange.phase
        return f"end of {phase}" if run.phase != before.phase or run.exchange.phase != phase else f"part of {phase}"
    return "close" if run.phase == "aggregated" and run.round == ROUND[False] else ""


def name_records(_: Any, given: Any) -> str:
    if any(isinstance(one, GivenReceipt) for one in given):
        return "receipt"
    return "arrival" if any(one.arrival.call == "update" for one in given) else ""


def name_pruning(_: Any, run: Any) -> str:
    return "pruning" if run.round == ROUND[run.pledge is not None] else ""


def around_bodies() -> None:
    """A half of a body: in its file, and on its way to the bucket."""
    finish, put = disk._finish_spool, Bucket.put

    def finish_half(spool: Spool, rest: bytes, inspect: Any) -> Any:
        write_half(spool, rest, "half of an update in its file")
        return finish(spool, rest, inspect)

    def put_half(bucket: Bucket, file: str, name: str) -> None:
        what = "the state" if getattr(STATE, "written", False) else "an update"
        if dies_at(step := f"half of {what} in the bucket"):
            send_half(bucket, Path(file).read_bytes(), name)
            strike(step)
        put(bucket, file, name)
        strike(f"{what} in the bucket, no row")

    disk._finish_spool, Bucket.put = finish_half, put_half  # type: ignore[method-assign]


def write_half(spool: Spool, piece: bytes, step: str) -> None:
    if dies_at(step):
        spool.write(piece[: len(piece) // 2])
        assert spool._file is not None
        spool._file.flush()
        strike(step)


def send_half(bucket: Bucket, body: bytes, name: str) -> None:
    """As a client of the store that dies while it sends."""
    place = urlsplit(os.environ["AWS_ENDPOINT_URL"])
    assert place.hostname is not None and place.port is not None
    head = f"PUT /{bucket._path(name)} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((place.hostname, place.port)) as connection:
        connection.sendall(head.encode() + body[: len(body) // 2])


def around_the_state() -> None:
    """The sum, and its body: `STATE.written` from when it is computed."""
    aggregate, pack, save = computation.aggregate_round, computation.pack_state, Blobs.save

    def pack_state(state: Any) -> Any:
        if STATE.made:
            strike("sum: after")
            STATE.written = True
        return pack(state)

    def save_half(blobs: Blobs, body: Any) -> Blob:
        if getattr(STATE, "written", False) and dies_at("half of the state in its file"):
            with Spool(blobs.directory, blobs._disk) as spool:
                write_half(spool, b"".join(body), "half of the state in its file")
        return save(blobs, body)

    def aggregate_round(archive: Any, run: Any) -> Any:
        STATE.made, STATE.written, STATE.summing = run.round == ROUND[run.pledge is not None], False, True
        if STATE.made:
            strike("sum: before")
        try:
            return aggregate(archive, run)
        finally:
            STATE.written = STATE.summing = False

    computation.pack_state, computation.aggregate_round = pack_state, aggregate_round
    Blobs.save = save_half  # type: ignore[method-assign]


def around_blocks() -> None:
    """Every sum is shared. While a worker is to die at a block, nobody else takes one."""
    shared_sums.LEAST_SHARED = 0
    take, claim = SharedSum.take_block, SumBlocks.claim

    def take_block(self: SharedSum, plan: Any) -> bool:
        step, pid = armed()
        return not (pid != os.getpid() and step.startswith(f"block of the {plan.step}: ")) and take(self, plan)

    def claim_block(self: SumBlocks, plan: Any) -> Any:
        if (found := claim(self, plan)) is not None and plan.round == ROUND[False]:
            strike(f"block of the {plan.step}: claimed")
        return found

    SharedSum.take_block, SumBlocks.claim = take_block, claim_block  # type: ignore[method-assign]
    around(
        SumBlocks, "store", lambda _, one, __: f"block of the {one.plan.step}" if one.plan.round == ROUND[False] else ""
    )


def around_removals(kind: type[Blobs]) -> None:
    remove = kind.remove

    def one_by_one(blobs: Blobs, names: Any) -> None:
        for name in names:
            remove(blobs, [name])
            if not getattr(STATE, "summing", False):  # else it is a block's
                strike("pruning: one body is gone")

    kind.remove = one_by_one  # type: ignore[method-assign]


def note_the_lead() -> None:
    """A file has the id of the process that leads."""
    real = SharedPostgreSQL._try_lead

    def lead(self: SharedPostgreSQL, owner: Any) -> bool:
        if leads := real(self, owner):
            (Path(os.environ[FOLDER]) / LEADER).write_text(str(os.getpid()))
        return leads

    SharedPostgreSQL._try_lead = lead  # type: ignore[method-assign]


def install() -> None:
    note_the_lead()
    around(SharedNonces, "_store", lambda *_: "nonce")
    around(coordinator, "add_client", lambda *_, **__: "row of a member")
    around(SharedRecords, "_store_together", name_records)
    around(run_document, "save_run", name_transition)
    around(RoundLoop, "_prune_files", name_pruning)
    around(run_store, "delete_old_blobs", lambda *_, **__: "pruning of rows")
    around(run_store, "delete_masked", lambda *_, **__: "pruning of masked rows")
    around_bodies()
    around_the_state()
    around_blocks()
    for kind in (Blobs, BucketBlobs):
        around_removals(kind)


if __name__ == "__main__":
    install()
    sys.exit(service.main())
