"""A call is sent again while the silo is busy or away, with growing pauses, and never without end."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from collections.abc import Callable

import httpx
import pytest

from lpsfed import AnswerError, AsyncClient, Client, Interaction, RefusedError, Retrying, UnreachableError

MODEL = {"users": 1, "items": 2, "score": "relevance"}
URL = "http://silo"


class Script:
    """Answers one after the other: a status with its headers, or an error; and the requests that came."""

    def __init__(self, *steps: int | type[httpx.TransportError], **headers: bytes) -> None:
        self.steps, self.headers, self.requests = iter(steps), headers, list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        step = next(self.steps)
        if not isinstance(step, int):
            raise step("down")
        busy = {"code": "unavailable", "detail": "expected a moment"}
        return httpx.Response(step, json=MODEL if step == 200 else busy, headers=self.headers)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were slept for, of which none pass."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("lpsfed.client.time.sleep", slept.append)
    monkeypatch.setattr("lpsfed.asynchronous.asyncio.sleep", sleep)
    return slept


def ask(script: Script, **given: float) -> object:
    with Client(URL, transport=httpx.MockTransport(script), retrying=Retrying(**given)) as client:  # type: ignore[arg-type]
        return client.read_model()


@pytest.mark.parametrize("step", [429, 502, 503, 504, httpx.ConnectError, httpx.ReadTimeout, httpx.RemoteProtocolError])
def test_another_attempt_is_made(step: int | type[httpx.TransportError], pauses: list[float]) -> None:
    script = Script(step, 200)
    assert ask(script) and len(script.requests) == 2 and len(pauses) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 415, 422, 500, 507])
def test_a_refusal_is_final(status: int, pauses: list[float]) -> None:
    with pytest.raises(RefusedError) as refused:
        ask(script := Script(status))
    assert refused.value.status == status and len(script.requests) == 1 and pauses == []


def test_it_ends_after_so_many_attempts(pauses: list[float]) -> None:
    with pytest.raises(UnreachableError, match="within 3 attempts, got 503 expected a moment"):
        ask(Script(*itertools.repeat(503, 9)), attempts=3)
    assert len(pauses) == 2


def test_pauses_double_at_most_and_are_drawn() -> None:
    retrying = Retrying(pause_seconds=1.0, longest_seconds=6.0)
    drawn = [[retrying.pause(attempt) for attempt in (1, 2, 3, 4)] for _ in range(200)]
    for column, most in zip(zip(*drawn, strict=True), (1.0, 2.0, 4.0, 6.0), strict=True):
        assert 0.0 <= min(column) < most / 4 and most * 0.75 < max(column) <= most


@pytest.mark.parametrize(("asked", "waited"), [("7", 7.0), ("3600", 10.0), ("-1", None), ("soon", None), ("٣", None)])
def test_what_the_silo_asks_for_is_waited_for_within_the_bound(
    asked: str, waited: float | None, pauses: list[float]
) -> None:
    ask(Script(503, 200, **{"Retry-After": asked.encode()}))
    assert pauses[0] == waited if waited is not None else pauses[0] <= 0.2


def test_an_interaction_has_the_same_event_id_in_each_attempt(pauses: list[float]) -> None:
    script = Script(503, httpx.ReadError, 200)
    with Client(URL, transport=httpx.MockTransport(script)) as client:
        client.send_interactions([Interaction("u", "i")])
    assert len({request.content for request in script.requests}) == 1 and len(pauses) == 2


Ask = Callable[[Client], object]


def serve_earlier(client: Client) -> object:
    """A model of an earlier shard comes under another version, which its own does not name."""
    return client.serve_model("run-1.7")


NOT_DONE = [429, 503, httpx.ConnectError, httpx.ConnectTimeout]
PERHAPS_DONE = [502, 504, httpx.ReadTimeout, httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError]


every_call_once = pytest.mark.parametrize("ask_once", [Client.refresh, serve_earlier], ids=["refresh", "serve"])


@every_call_once
@pytest.mark.parametrize("step", NOT_DONE)
def test_a_call_that_must_not_come_twice_is_repeated_where_the_first_one_did_nothing(
    step: int | type[httpx.TransportError], ask_once: Ask, pauses: list[float]
) -> None:
    script = Script(step, 403)
    with pytest.raises(RefusedError), Client(URL, transport=httpx.MockTransport(script)) as client:
        ask_once(client)
    assert len(script.requests) == 2 and len(pauses) == 1


@every_call_once
@pytest.mark.parametrize("step", PERHAPS_DONE)
def test_a_call_that_must_not_come_twice_ends_where_the_first_one_may_have_been_done(
    step: int | type[httpx.TransportError], ask_once: Ask, pauses: list[float]
) -> None:
    script, words = Script(step, 403), r"POST /v1/(refresh|models/{version}/serve): .* it may have been done"
    with pytest.raises(UnreachableError, match=words), Client(URL, transport=httpx.MockTransport(script)) as client:
        ask_once(client)
    assert len(script.requests) == 1 and pauses == []


def test_the_awaited_client_does_not_repeat_it_either(pauses: list[float]) -> None:
    async def ask_awaited() -> None:
        async with AsyncClient(URL, transport=httpx.MockTransport(script)) as client:
            await client.refresh()

    script = Script(httpx.ReadTimeout, 403)
    with pytest.raises(UnreachableError, match="it may have been done"):
        asyncio.run(ask_awaited())
    assert len(script.requests) == 1 and pauses == []


@pytest.mark.parametrize("words", ["unable to get local issuer certificate", "certificate has expired"])
def test_a_certificate_that_is_not_believed_is_said_at_once(pauses: list[float], words: str) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        cause = ssl.SSLCertVerificationError(1, words)
        cause.verify_message = words
        raise httpx.ConnectError("down", request=request) from cause

    with (
        Client("https://silo", transport=httpx.MockTransport(refuse)) as client,
        pytest.raises(UnreachableError, match=f"certificate is not trusted \\({words}\\)"),
    ):
        client.read_model()
    assert pauses == []


def test_the_awaited_client_does_the_same(pauses: list[float]) -> None:
    async def ask_awaited() -> object:
        transport = httpx.MockTransport(Script(503, httpx.ConnectError, 200))
        async with AsyncClient(URL, transport=transport) as client:
            return await client.read_model()

    assert asyncio.run(ask_awaited()) and len(pauses) == 2


OTHERS = [
    httpx.Response(200, text="<html>welcome</html>"),
    httpx.Response(200, json={"users": "many", "items": 1, "score": ""}),
    httpx.Response(200, json=[]),
]


@pytest.mark.parametrize("answer", OTHERS)
def test_another_server_s_answer_is_named_and_not_shown(answer: httpx.Response) -> None:
    with (
        Client(URL, transport=httpx.MockTransport(lambda _: answer)) as client,
        pytest.raises(AnswerError, match="GET /v1/model: expected the answer of a silo") as failed,
    ):
        client.read_model()
    assert "many" not in str(failed.value) and "welcome" not in str(failed.value)


def test_a_field_of_a_later_version_is_left_out() -> None:
    later = httpx.MockTransport(lambda _: httpx.Response(200, json=MODEL | {"mood": "good"}))
    with Client(URL, transport=later) as client:
        assert client.read_model().items == 2


def test_no_attempts_are_refused() -> None:
    with pytest.raises(ValueError, match="attempts: expected at least 1"):
        Retrying(attempts=0)
