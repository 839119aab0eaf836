"""Ledger, account and heads of one older copy agree with each other: only what somebody outside knows can tell.

Who: whoever puts a whole older copy of the state directory back, by mistake or to make the silo forget. What they got:
a ledger without the later uploads, and the budget spent again. Now the aggregator tells a client that joins by which
nonce its last update was signed, and the client's ledger must have that entry.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client_service.refresh.record_check import adopt_records
from shared.protocol.signing.enrolment import read_own_key
from tests.service.attacks.test_account_cut import NOISED
from tests.support.questions import finished, read, uploads

if TYPE_CHECKING:
    from conftest import Federate, Opened, Until

pytestmark = pytest.mark.anyio


async def test_a_client_with_an_older_state_sends_nothing_until_its_silo_gives_up_what_is_lost(
    federation: Federate, opened: Opened, until: Until, tmp_path: Path
) -> None:
    async with federation(2, first={"privacy": NOISED}) as running:
        east, west = running.clients
        for run in ("run-1", "run-2"):
            await running.complete(run, rounds=1)
            if run == "run-1":
                shutil.copytree(east.state_directory, tmp_path / "older")
        lost = uploads(east)[-1]["hash"][:32]
        shutil.rmtree(east.state_directory)
        shutil.copytree(tmp_path / "older", east.state_directory)

        async with opened(east, running.line()) as one, opened(west, running.line()):
            await running.start(rounds=1)

            async def held_up() -> bool:
                return "older copy" in ((await read(one, "status")).get("problem") or "")

            await until(held_up)
            assert lost in (await read(one, "status"))["problem"] and len(uploads(east)) == 1

        key = read_own_key(east.name, east.state_directory)
        adopt_records(east.state_directory, key, "the newest copy is lost", give_up=lost)
        async with opened(east, running.line()) as one, opened(west, running.line()) as two:
            await until(finished(one, two, run="run-3"))
        assert len(uploads(east)) == 2
