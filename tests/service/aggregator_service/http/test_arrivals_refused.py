"""Whatever a known client sends and is refused is on record all the same: how much came, its digest, and why not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from starlette.types import Message, Scope

from shared.protocol.wire import MEDIA_TYPE

if TYPE_CHECKING:
    from conftest import FakeClient, Federation, Running

pytestmark = pytest.mark.anyio
Row = dict[str, Any]
JOINED = 2  # rows of the two clients of an opened federation
Refusal = Callable[["FakeClient"], Awaitable[Row]]


async def broken_join(north: FakeClient) -> Row:
    body = b'{"client": "north", "user-00006'
    await north.post(body)
    return north.arrival("join", body, 422, code="protocol")


async def other_fields(north: FakeClient) -> Row:
    body = north.joining()[:-1] + b', "users": ["user-00006"]}'
    await north.post(body)
    return north.arrival("join", body, 422, code="protocol")


async def other_declaration(north: FakeClient) -> Row:
    body = north.joining().replace(b"lpsfed", b"fedavg")
    await north.post(body)
    return north.arrival("join", body, 422, code="protocol")


async def other_name_joined(north: FakeClient) -> Row:
    body = north.joining("south")
    await north.post(body)
    return north.arrival("join", body, 403, code="forbidden")


async def long_join(north: FakeClient) -> Row:
    """By its announced length, of which nothing is read."""
    await north.post(b"0" * (5 << 20))
    return north.arrival("join", b"", 413, code="too-large")


async def garbage(north: FakeClient) -> Row:
    body = b"user-00006" * 100
    await north.put(1, body)
    return north.arrival("update", body, 422, code="protocol")


async def nothing(north: FakeClient) -> Row:
    await north.put(1, b"")
    return north.arrival("update", b"", 422, code="protocol")


async def second_version(north: FakeClient) -> Row:
    await north.put(1, north.update(1.0))
    body = north.update(2.0)
    await north.put(1, body)
    return north.arrival("update", body, 409, code="conflict")


async def round_to_come(north: FakeClient) -> Row:  # refused before its body is read
    await north.put(2, north.update(1.0))
    return north.arrival("update", b"", 409, code="round-closed", round=2)


async def unknown_run(north: FakeClient) -> Row:
    await north.put_at("run-9/rounds/1/clients/north/update", north.update(1.0))
    return north.arrival("update", b"", 404, code="not-found", run="run-9")


async def other_name_in_the_path(north: FakeClient) -> Row:
    await north.put_at("run-1/rounds/1/clients/south/update", north.update(1.0))
    return north.arrival("update", b"", 403, code="forbidden")


async def malformed_path(north: FakeClient) -> Row:
    await north.put_at("run-x/rounds/soon/clients/north/update", north.update(1.0))
    return north.arrival("other", b"", 400, code="request-head", run=None, round=None)


async def round_out_of_range(north: FakeClient) -> Row:
    await north.put_at("run-1/rounds/100001/clients/north/update", north.update(1.0))
    return north.arrival("update", b"", 422, code="protocol", round=None)


async def query(north: FakeClient) -> Row:
    await north.put_at("run-1/rounds/1/clients/north/update?user-00006", north.update(1.0))
    return north.arrival("update", b"", 422, code="protocol")


async def other_kind(north: FakeClient) -> Row:
    await north.put(1, north.update(1.0), Content_Type="text/csv")
    return north.arrival("other", b"", 415, code="media-type", run=None, round=None)


async def too_large_by_its_header(north: FakeClient) -> Row:
    await north.put(1, b"0" * 100_001)
    return north.arrival("update", b"", 413, code="too-large")


async def too_large_as_it_comes(north: FakeClient) -> Row:
    pulled: list[bytes] = []

    async def endless() -> AsyncIterator[bytes]:
        while True:
            pulled.append(bytes([len(pulled)]) * 30_000)
            yield pulled[-1]

    await north.put(1, endless())
    return north.arrival("update", b"".join(pulled[:4]), 413, code="too-large")


REFUSALS: tuple[Refusal, ...] = (
    broken_join,
    other_fields,
    other_declaration,
    other_name_joined,
    long_join,
    garbage,
    nothing,
    second_version,
    round_to_come,
    unknown_run,
    other_name_in_the_path,
    malformed_path,
    round_out_of_range,
    query,
    other_kind,
    too_large_by_its_header,
    too_large_as_it_comes,
)


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: one.__name__)
async def test_what_is_refused_is_on_record_too_under_its_senders_name(running: Running, refusal: Refusal) -> None:
    async with running(max_upload_bytes=100_000) as federation:
        north, _ = await federation.opened()
        expected = await refusal(north)
        assert (await federation.arrivals(JOINED))[-1] == expected
        text = json.dumps(await federation.arrivals())
        assert "user-00006" not in text and "run-x" not in text


async def sent_raw(federation: Federation, client: FakeClient, messages: list[Message]) -> list[Message]:
    """An update as a server would hand it to the app, message by message; what the app answers."""
    path = "/v1/runs/run-1/rounds/1/clients/north/update"
    body = b"".join(message.get("body", b"") for message in messages)
    signed = client.auth.headers("PUT", path.encode(), body)
    headers = signed | {"Content-Type": MEDIA_TYPE, "Transfer-Encoding": "chunked", "Host": "aggregator"}
    scope: Scope = {
        "type": "http",
        "method": "PUT",
        "http_version": "1.1",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
    }
    answers: list[Message] = []

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        answers.append(message)

    await federation.app(scope, receive, send)
    return answers


async def test_of_a_body_that_was_cut_off_the_part_that_came_is_on_record(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        part = north.update(1.0)[:100]
        cut: list[Message] = [{"type": "http.request", "body": part, "more_body": True}, {"type": "http.disconnect"}]
        assert (await sent_raw(federation, north, cut))[0]["status"] == 400
        assert await federation.arrivals(JOINED) == [north.arrival("update", part, 400, code="protocol")]


async def test_our_own_mistake_is_on_record(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ValueError("a mistake in the coordinator")

    async with running() as federation:
        north, _ = await federation.opened()
        monkeypatch.setattr(federation.app.state.coordinator, "receive_update", broken)
        answer = await north.put(1, north.update(1.0))
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "a mistake in the coordinator" not in answer.text
        assert await federation.arrivals(JOINED) == [north.arrival("update", b"", 500, code="internal")]
