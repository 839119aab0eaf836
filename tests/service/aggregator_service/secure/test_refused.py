"""Messages of a secure round that are not taken: repeated otherwise, out of order, somebody else's, unmasked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.protocol.masked_wire import encode_masked
from shared.protocol.secure import vectors
from shared.protocol.secure.messages import MaskedHeader
from shared.protocol.secure.vectors import MaskedUpdate

if TYPE_CHECKING:
    import httpx
    from conftest import Masking, Running, Secured

pytestmark = pytest.mark.anyio


def met(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def unmasked(one: Masking) -> bytes:
    """The update in fixed point, as it is before any mask."""
    open_to_all = vectors.encode_vector(one.fake.declaration, one.content)
    digest, scalars = vectors.digest_vector(open_to_all), {"rho": one.content.scalars["rho"]}
    header = MaskedHeader(run="run-1", round=1, client=one.name, digest=digest, scalars=scalars)
    return encode_masked(MaskedUpdate(header, open_to_all))


async def test_the_same_message_again_changes_nothing_and_another_one_is_a_conflict(secured: Secured) -> None:
    async with secured(3) as made:
        ada = made.clients["ada"]
        for phase in ("keys", "shares", "checks"):
            await made.phase(phase)
            assert (await getattr(ada, phase)()).status_code == 204
        await made.phase("masked", "ada")
        assert (await ada.masked()).status_code == 200
        await made.phase("masked", "bob", "cyd")
        ada.begun = None
        assert met(await ada.keys()) == (409, "conflict")
        await made.phase("consents")
        assert (await ada.consents()).status_code == 204
        await made.phase("answers", "ada", "bob")
        assert (await ada.answers()).status_code == 204


async def test_a_message_of_a_phase_that_is_not_there_yet_or_any_more_is_refused(secured: Secured) -> None:
    async with secured(4, quorum=3) as made:
        ada, dan = made.clients["ada"], made.clients["dan"]
        assert (await ada.asked("roster")).status_code == 404
        await made.phase("keys", "ada")
        assert (await ada.asked("roster")).status_code == 204
        await made.phase("keys", "bob", "cyd")
        await made.late()
        assert met(await dan.keys()) == (409, "round-closed")
        assert met(await dan.asked("roster")) == (404, "not-found")
        assert met(await dan.fake.put(1, b"anything")) == (409, "round-closed")
        await made.phase("shares", "ada", "bob", "cyd")
        await made.phase("checks", "ada", "bob", "cyd")
        assert met(await dan.fake.put(1, b"anything")) == (404, "not-found")


async def test_nobody_speaks_in_another_s_name_or_of_another_round(secured: Secured) -> None:
    async with secured(3) as made:
        ada, bob = made.clients["ada"], made.clients["bob"]
        await made.phase("keys", "ada")
        assert ada.begun is not None
        keys = json.loads((await bob.keys()).request.content)
        foreign = json.dumps(keys | {"client": "ada"}).encode()
        assert met(await bob.said("keys", foreign)) == (403, "forbidden")
        assert met(await bob.said("keys", foreign, at=bob.path("keys", "ada"))) == (403, "forbidden")
        assert met(await bob.fake.get(bob.path("roster", "ada"))) == (403, "forbidden")
        other = json.dumps(keys | {"round": 2}).encode()
        assert met(await bob.said("keys", other)) == (422, "protocol")
        longer = json.dumps(keys | {"also": "this"}).encode()
        assert (await bob.said("keys", longer)).status_code == 422


async def test_an_update_that_is_open_to_view_is_refused_and_nothing_of_it_stays(secured: Secured) -> None:
    async with secured(3) as made:
        ada, blobs = made.clients["ada"], made.federation.settings.state_directory / "blobs"
        await made.until("masked")
        opened = ada.fake.update(0.5, margin=0.1, rho=0.2)
        for body in (opened, unmasked(ada)):
            assert met(await ada.fake.put(1, body)) == (422, "protocol")
        assert list(blobs.iterdir()) == []
        assert [one["status"] for one in await made.federation.arrivals() if one["call"] == "update"] == [422, 422]


async def test_a_masked_vector_has_one_form_and_its_own_header(secured: Secured) -> None:
    async with secured(3) as made:
        ada, bob = made.clients["ada"], made.clients["bob"]
        await made.until("masked")
        await made.phase("masked", "bob")
        assert met(await ada.fake.put(1, bob.body)) == (403, "forbidden")
        await bob.masked()
        flipped = bytearray(bob.body)
        flipped[-1] ^= 1
        assert met(await ada.fake.put(1, bytes(flipped))) == (422, "protocol")
        assert met(await ada.fake.put(1, bob.body + b" ")) == (422, "protocol")


async def test_shares_that_leave_somebody_out_and_answers_to_another_question_are_refused(secured: Secured) -> None:
    async with secured(3) as made:
        ada = made.clients["ada"]
        await made.phase("keys")
        await made.phase("shares", "bob", "cyd")
        await ada.shares()
        assert ada.sharing is not None
        fewer = json.loads(ada.sharing.message.model_dump_json())
        del fewer["shares"]["bob"]
        assert met(await ada.said("shares", json.dumps(fewer).encode()))[0] in (409, 422)
        for phase in ("checks", "masked", "consents"):
            await made.phase(phase)
        answer = json.loads(await ada.answer())
        answer["keys"]["bob"] = answer["seeds"]["bob"]
        assert met(await ada.said("answers", json.dumps(answer).encode())) == (422, "protocol")


async def test_a_wrong_share_is_refused_by_its_sender_s_name_and_the_round_ends_without_it(secured: Secured) -> None:
    """Before, it was taken, and the run failed with the name of the client whose share it should have been."""
    async with secured(4) as made:
        bob = made.clients["bob"]
        await made.until("answers")
        answer = json.loads(await bob.answer())
        answer["seeds"]["ada"] = answer["seeds"]["cyd"]
        assert met(await bob.said("answers", json.dumps(answer).encode())) == (422, "protocol")
        members = (await made.federation.operate("GET", "/v1/clients")).json()
        assert {one["client"]: one["refused"] for one in members} == {"ada": 0, "bob": 1, "cyd": 0, "dan": 0}
        await made.phase("answers", "ada", "cyd", "dan")
        assert (await made.clients["ada"].fake.personalised(1)).status_code == 200
        assert (await made.federation.history())["phase"] == "finished"


async def test_a_damaged_masked_vector_ends_the_run_for_a_reason_that_says_so(secured: Secured) -> None:
    async with secured(3) as made:
        await made.until("consents")
        for blob in (made.federation.settings.state_directory / "blobs").iterdir():
            blob.write_bytes(bytes(np.frombuffer(blob.read_bytes(), np.uint8)[::-1]))
        await made.phase("consents")
        await made.phase("answers")
        answer = await made.clients["ada"].fake.personalised(1)
        assert answer.status_code == 409
        assert "the disk had damaged the masked vector of ada, bob, cyd" in answer.json()["detail"]


async def test_an_open_federation_knows_no_call_of_a_secure_round(running: Running) -> None:
    async with running() as federation:
        [ada] = await federation.joined("ada")
        assert (await ada.get("/v1/runs/run-1/rounds/1/clients/ada/roster")).status_code == 404
        assert (await ada.join(declaration=ada.declaration.model_dump() | {"secure": True})).status_code == 422
