"""A bad client neither ends a round nor frames another.

Who: one client of five. It seals rubbish for the others, or answers with a wrong share. Before, rubbish put whoever it
was sealed for out of the round in silence; a wrong share made the recovery fail, and the run, under its victim's name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from aggregator_service.rounds.members import Quarantines
from client_service.boundary.aggregator_api import Aggregator
from shared.protocol.secure import client
from shared.protocol.secure.proofs import sign_shares
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import open_federation
from tests.support.misled import ending_of, start
from tests.support.neighbours import BOTH_GRAPHS
from tests.support.questions import LONGEST_SECONDS, read

pytestmark = [pytest.mark.anyio, BOTH_GRAPHS]
BAD = "client-2"


def seal_rubbish(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bad client's own code is patched: it signs what it likes."""
    share = client.share_secrets

    def spoil(state: Any, roster: Any, members: Any, identity: Any, **own: Any) -> Any:
        found = share(state, roster, members, identity, **own)
        if state.client != BAD:
            return found
        spoilt = {name: one.model_copy(update={"sealed": "00" * 92}) for name, one in found.message.shares.items()}
        signed = sign_shares(found.message.model_copy(update={"shares": spoilt}), identity)
        return found.model_copy(update={"message": signed})

    monkeypatch.setattr(client, "share_secrets", spoil)


def answer_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    unmask = client.answer_unmask_request

    def spoil(state: Any, consents: Any, *pairs: Any) -> Any:
        found = unmask(state, consents, *pairs)
        if state.client != BAD:
            return found
        return found.model_copy(update={"seeds": {**found.seeds, min(found.seeds): "0b" * 32}})

    monkeypatch.setattr(client, "answer_unmask_request", spoil)
    let_the_bad_one_speak_first(monkeypatch)


def let_the_bad_one_speak_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' answers would end the round, and nobody would look at an answer that comes after it."""
    refused, relay, blamed = Quarantines.count_refused_update, Aggregator.send_message, threading.Event()

    async def note_refusal(quarantines: Quarantines, place: Any) -> None:
        await refused(quarantines, place)
        blamed.set()

    async def relay_in_turn(link: Aggregator, call: str, message: Any) -> None:
        with anyio.fail_after(LONGEST_SECONDS):
            while call == "answers" and message.client != BAD and not blamed.is_set():
                await anyio.sleep(0.01)
        await relay(link, call, message)

    monkeypatch.setattr(Quarantines, "count_refused_update", note_refusal)
    monkeypatch.setattr(Aggregator, "send_message", relay_in_turn)


@pytest.mark.parametrize("spoil", [seal_rubbish, answer_wrongly])
async def test_the_round_ends_with_the_sum_of_the_others_and_the_name_of_the_bad_one(
    secure_run: Callable[[int], Experiment],
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[pytest.MonkeyPatch], None],
) -> None:
    spoil(monkeypatch)
    one = secure_run(5)
    async with open_federation(one) as federation:
        assert (await start(federation, one)).status_code == 201
        run = await ending_of(federation, "run-1")
        members = {str(one["client"]): one for one in await read(federation.operator, "clients")}
    assert (run["phase"], run["reason"]) == ("finished", None)
    assert {name for name, member in members.items() if member["refused"] or member["quarantine"]} == {BAD}
    summed = {who["client"] for who in run["rounds"][0]["participants"] if who["received"]}
    if spoil is seal_rubbish:
        assert members[BAD]["quarantine"]["cause"] == "shares" and BAD not in summed
    else:
        assert members[BAD]["refused"] == 1 and BAD in summed
