"""A message that comes just before its phase is verified like any other.

Who: one client of four. It holds back what closes a phase, sends that and, right behind it, a message of the next one.
Before, the second one was looked at while the old phase was open, where it was not to be verified, and taken in when
the new phase was: by a complaint that nobody could prove, an honest client was put out of the round and quarantined for
its shares; by a wrong share in an answer the run ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest

from shared.protocol.secure import client
from shared.protocol.secure.messages import Complaint, ShareCheck, UnmaskAnswer, UnmaskRequest
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import Masking, Secured, SecureFederation

pytestmark = pytest.mark.anyio


async def one_behind_the_other(made: SecureFederation, bad: Masking, last: str, kind: str, body: bytes) -> int:
    """Both wait at the lock: the first was verified, and so was the second, as of a phase that is not there yet."""
    lock, answers = made.federation.app.state.coordinator.federation.round_loop.lock, []
    waiting_tasks = lock._lock.statistics  # of this process, which alone has the database

    async def send() -> None:
        answers.append((await bad.said(kind, body)).status_code)

    async def waiting(count: int) -> None:
        while waiting_tasks().tasks_waiting < count:
            await anyio.sleep(0.001)

    with anyio.fail_after(LONGEST_SECONDS):
        async with anyio.create_task_group() as group, lock:
            before = waiting_tasks().tasks_waiting
            group.start_soon(getattr(bad, last))
            await waiting(before + 1)
            group.start_soon(send)
            await waiting(before + 2)
    return int(answers[0])


async def test_a_complaint_without_proof_frames_nobody_whenever_it_comes(secured: Secured) -> None:
    async with secured(4, quorum=3) as made:
        bad = made.clients["bob"]
        await made.phase("keys")
        await made.phase("shares", "ada", "cyd", "dan")
        complaint = Complaint(point="ab" * 32, challenge="0b" * 32, response="0b" * 32)
        forged = ShareCheck(run="run-1", round=1, client="bob", transcript="00" * 32, complaints={"ada": complaint})
        status = await one_behind_the_other(made, bad, "shares", "checks", forged.model_dump_json().encode())
        members = {one["client"]: one for one in (await made.federation.operate("GET", "/v1/clients")).json()}
        assert members["ada"]["quarantine"] is None, "an honest client is framed"
        assert status == 422 and members["bob"]["refused"] == 1


async def test_a_wrong_share_ends_no_run_whenever_it_comes(secured: Secured) -> None:
    async with secured(4) as made:
        bad = made.clients["bob"]
        await made.until("consents")
        await made.phase("consents", "ada", "cyd", "dan")
        request = await bad.expected("request", UnmaskRequest)
        assert bad.ready is not None
        bad.ready, bad.consent = client.sign_consent(bad.ready, request, bad.identity)
        seeds = dict.fromkeys(bad.ready.shares, bad.ready.shares["ada"].seed)
        wrong = UnmaskAnswer(run="run-1", round=1, client="bob", seeds=seeds, keys={})
        status = await one_behind_the_other(made, bad, "consents", "answers", wrong.model_dump_json().encode())
        await made.phase("answers", "ada", "cyd", "dan")
        assert (await bad.fake.personalised(1)).status_code == 200, "the run has ended"
        assert status == 422 and (await made.federation.history())["phase"] == "finished"
