"""Who may call: only whoever has signed this very request, with a registered key, just now, and for the first time."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import new_key, public_pem
from shared.protocol.wire import MEDIA_TYPE

if TYPE_CHECKING:
    from conftest import FakeClient, Running

pytestmark = pytest.mark.anyio
CURRENT = "/v1/runs/current"
UPDATE = "/v1/runs/run-1/rounds/1/clients/north/update"
ONE_REFUSAL = (
    "signature: expected this request signed by the private key whose public key is registered under this name, "
    "got another"
)


def require(answer: httpx.Response, code: str, status: int = 401) -> str:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    detail: str = answer.json()["detail"]
    return detail


def signed(client: FakeClient, method: str, path: str, body: bytes = b"") -> dict[str, str]:
    """The headers of such a request, to be sent with whatever other one."""
    return client.auth.headers(method, path.encode(), body)


async def ask(client: FakeClient, **auth: Any) -> httpx.Response:
    return await client.http.get(CURRENT, auth=replace(client.auth, **auth))


async def test_nobody_calls_without_a_signature_whatever_else_it_shows(running: Running) -> None:
    async with running() as federation:
        await federation.opened()
        for headers in ({}, {"Authorization": "Bearer " + "x" * 64}, {"Content-Digest": "sha-256=:user-00:"}):
            detail = require(await federation.http.get(CURRENT, headers=headers), "authentication")
            assert detail.endswith("has signed, by the headers content-digest, signature-input, signature")


async def test_an_unknown_name_and_a_wrong_key_are_refused_in_the_same_words(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        answers = [await ask(north, key=new_key()), await ask(north, name="nobody"), await ask(north, name="south")]
        assert [require(answer, "authentication") for answer in answers] == [ONE_REFUSAL] * 3
        assert (await ask(north)).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/runs/run-1/model", b""),
        ("GET", f"{CURRENT}?after=1", b""),
        ("PUT", CURRENT, b""),
        ("GET", CURRENT, b"user-00"),
    ],
)
async def test_a_signature_is_good_for_one_method_path_query_and_body(
    running: Running, method: str, path: str, body: bytes
) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        answer = await federation.http.request("GET", CURRENT, headers=signed(north, method, path, body))
        code = "content-digest" if body else "authentication"
        assert "user-00" not in require(answer, code)


async def test_a_body_that_was_not_signed_is_refused_once_it_is_whole_and_is_on_record(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        body, kind = north.update(1.0), {"Content-Type": MEDIA_TYPE}
        other = replace(north.auth, body=north.update(2.0))
        answer = await federation.http.put(UPDATE, content=body, headers=kind, auth=other)
        detail = require(answer, "content-digest")
        assert detail == "content-digest: expected the sha256 of the received body, got another"
        assert not list((federation.settings.state_directory / "blobs").iterdir())
        assert (await federation.arrivals(2))[-1] == north.arrival("update", body, 401, code="content-digest")
        assert (await north.put(1, body)).status_code == 201


async def test_a_join_that_was_not_signed_as_it_came_enrols_nobody(running: Running) -> None:
    async with running() as federation:
        north = federation.client("north")
        json = {"Content-Type": "application/json"}
        for body in (north.joining(), b"{", b'{"client": "user-00"}'):
            auth = replace(north.auth, body=b"another body")
            answer = await federation.http.post("/v1/clients", content=body, headers=json, auth=auth)
            assert "user-00" not in require(answer, "content-digest")
        require(await north.get(CURRENT), "authentication")
        assert (await north.post(north.joining())).status_code == 200


async def test_a_body_of_unknown_length_is_checked_at_its_end(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        body, kind = north.update(1.0), {"Content-Type": MEDIA_TYPE}

        async def pieces(last: bytes) -> AsyncIterator[bytes]:
            yield body[:-8]
            yield last

        for last, expected in ((b"8 others", 401), (body[-8:], 201)):
            auth = replace(north.auth, body=body)
            answer = await federation.http.put(UPDATE, content=pieces(last), headers=kind, auth=auth)
            assert answer.status_code == expected


async def test_nothing_is_read_of_a_body_that_nobody_known_has_signed(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        pulled = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal pulled
            pulled += 1
            yield north.joining()

        for path, method in (("/v1/clients", "POST"), (UPDATE, "PUT")):
            for auth in (None, replace(north.auth, key=new_key()), replace(north.auth, late=1000)):
                answer = await federation.http.request(method, path, content=body(), auth=auth)
                assert answer.status_code == 401
        assert pulled == 0


@pytest.mark.parametrize("late", [-100_000, -70, 70, 100_000])
async def test_what_was_signed_at_another_time_is_refused_with_the_difference_of_the_clocks(
    running: Running, late: int
) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        detail = require(await ask(north, late=late), "clock")
        words = "behind" if late > 0 else "ahead of"
        assert detail.startswith("signature: expected a time within 60 s of the aggregator's clock, got one ")
        assert detail.endswith(f" s {words} it: set the clocks")
        seconds = int(detail.partition("got one ")[2].split()[0])
        assert abs(seconds - abs(late)) <= 5
        for within in (-50, 50):
            assert (await ask(north, late=within)).status_code == 200


async def test_whoever_has_no_key_learns_nothing_of_the_clocks(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        assert require(await ask(north, late=1000, key=new_key()), "authentication") == ONE_REFUSAL


async def test_the_same_request_again_is_refused_and_a_new_signature_of_it_is_not(running: Running) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        headers = signed(north, "GET", CURRENT)
        answers = [await federation.http.get(CURRENT, headers=headers) for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 401, 401]
        detail = "signature: expected a new nonce, got one of an earlier request"
        assert require(answers[1], "replay") == detail
        nonce = "0" * 32
        for expected in (200, 401):
            assert (await ask(north, nonce=nonce, late=expected // 100)).status_code == expected
        assert (await ask(south, nonce=nonce)).status_code == 200  # everybody has nonces of its own


async def test_an_update_that_is_sent_again_is_signed_anew_and_answered_as_before(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        body, kind = north.update(1.0), {"Content-Type": MEDIA_TYPE}
        headers = signed(north, "PUT", UPDATE, body) | kind
        first = await federation.http.put(UPDATE, content=body, headers=headers)
        require(await federation.http.put(UPDATE, content=body, headers=headers), "replay")
        again = await north.put(1, body)
        assert (first.status_code, again.status_code) == (201, 200) and again.json() == first.json()


async def test_a_request_cannot_be_repeated_after_a_restart_either(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        headers = signed(north, "GET", CURRENT)
        assert (await federation.http.get(CURRENT, headers=headers)).status_code == 200
        unused = signed(north, "GET", CURRENT)
    async with running() as federation:
        require(await federation.http.get(CURRENT, headers=headers), "replay")
        assert (await federation.http.get(CURRENT, headers=unused)).status_code == 200


async def test_nobody_reads_another_one_s_parameters(running: Running) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        for client, value in ((north, 1.0), (south, 3.0)):
            await client.put(1, client.update(value))
        mine, theirs = await north.personalised(1), await south.personalised(1)
        assert mine.status_code == theirs.status_code == 200
        answer = await north.get("/v1/runs/run-1/rounds/1/clients/south/personalized")
        assert require(answer, "forbidden", 403) == "expected your own name, 'north', got 'south'"
        stolen = signed(south, "GET", "/v1/runs/run-1/rounds/1/clients/south/personalized")
        for path in ("/v1/runs/run-1/rounds/1/clients/north/personalized", CURRENT):
            require(await federation.http.get(path, headers=stolen), "authentication")


async def test_whoever_is_registered_may_call_at_once_and_whoever_is_removed_may_not(running: Running) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        file = public_file("north", federation.settings.registry)
        registered = file.read_bytes()
        file.unlink()
        assert require(await ask(north), "authentication") == ONE_REFUSAL
        assert (await ask(south)).status_code == 200
        file.write_bytes(registered)
        assert (await ask(north)).status_code == 200


async def test_a_new_key_takes_the_place_of_the_old_one_at_once(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        key, file = new_key(), public_file("north", federation.settings.registry)
        beside = file.with_suffix(".new")
        beside.write_bytes(public_pem(key.public_key()))
        os.replace(beside, file)
        require(await ask(north), "authentication")
        assert (await ask(north, key=key)).status_code == 200


async def test_a_file_that_is_no_key_lets_nobody_in(running: Running) -> None:
    async with running() as federation:
        north, south = await federation.opened()
        file = public_file("north", federation.settings.registry)
        for content in (b"", b"not a key", public_pem(new_key().public_key())[:-40]):
            file.write_bytes(content)
            os.utime(file, ns=(time.time_ns(), time.time_ns()))
            assert require(await ask(north), "authentication") == ONE_REFUSAL
        assert (await ask(south)).status_code == 200


async def test_keys_may_lie_elsewhere_and_the_folder_may_come_later(running: Running, tmp_path: Any) -> None:
    async with running(keys_directory=tmp_path / "elsewhere" / "keys", signature_seconds=5) as federation:
        assert federation.settings.registry == tmp_path / "elsewhere" / "keys"
        stranger = replace(federation.client("north").auth, name="north")
        public_file("north", federation.settings.registry).unlink()
        federation.settings.registry.rmdir()
        require(await federation.http.get(CURRENT, auth=stranger), "authentication")
        (north,) = await federation.joined("north")
        assert (await ask(north)).status_code == 200
        assert "within 5 s of" in require(await ask(north, late=10), "clock")


async def test_a_signature_that_does_not_hold_is_refused_wherever_it_goes(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        for path in ("/health/live", "/v2", "/v1/runs", "/"):
            answer = await federation.http.get(path, auth=replace(north.auth, key=new_key()))
            require(answer, "authentication")
        assert (await federation.http.get("/health/live")).status_code == 200


async def test_a_flood_of_one_client_shuts_out_itself_alone(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aggregator_service.storage.nonces.MOST", 5)
    async with running() as federation:
        north, south = await federation.joined("north", "south")  # by one request each
        answers = [(await ask(north)).status_code for _ in range(6)]
        assert answers == [200] * 4 + [503] * 2
        assert (await ask(south)).status_code == 200
