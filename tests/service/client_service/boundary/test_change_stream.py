"""A client hears of changes by one held answer: resumed by number, given up where it is silent, false or replayed."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from aggregator_service.rounds import broadcaster
from client_service.boundary.change_stream import ChangeStream
from shared.errors import AuthenticationError, UnavailableError
from shared.protocol.request_heads import RequestHead
from shared.protocol.schemas import RunOut
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.events import CHANGES
from shared.protocol.signing.requests import RequestTarget, Signatory, sign_request
from tests.support.questions import LONGEST_SECONDS
from tests.support.streams import serve_federation

pytestmark = pytest.mark.anyio
BEAT = 0.8  # a busy machine may be late by a second
Change = Callable[[bytes], bytes]


@pytest.fixture
def short_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heart-beats come many times as often, so that their absence is soon noticed."""
    monkeypatch.setattr(broadcaster, "BEAT_SECONDS", BEAT)
    monkeypatch.setattr(broadcaster, "TURN_SECONDS", BEAT / broadcaster.TURNS)


async def next_state(stream: ChangeStream, after: int) -> RunOut:
    """The state of all that the stream tells of next."""
    event = await stream.wait_for_change(after, LONGEST_SECONDS)
    assert event is not None and event.state is not None
    return event.state


async def open_state(stream: ChangeStream, after: int) -> RunOut:
    """The state of all once a round is open."""
    state = await next_state(stream, after)
    while state.phase != "open":
        state = await next_state(stream, state.sequence)
    return state


@asynccontextmanager
async def relayed(url: str, change: Change) -> AsyncIterator[str]:
    """A proxy before the aggregator, which changes each piece of what it answers; b"": it keeps it back."""
    host, _, port = url.removeprefix("http://").rpartition(":")

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Change) -> None:
        while piece := await reader.read(1 << 16):
            writer.write(way(piece))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        pumps = [
            asyncio.create_task(one) for one in (pump(reader, inner_writer, bytes), pump(inner_reader, writer, change))
        ]
        open_pumps.extend(pumps)
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for one in pumps:
            one.cancel()
        inner_writer.close(), writer.close()

    open_pumps: list[asyncio.Task[None]] = []
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for one in open_pumps:
            one.cancel()
        await asyncio.sleep(0.1)  # until their connections are closed


async def test_a_change_comes_by_the_stream_with_the_state_of_all(tmp_path: Path) -> None:
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north") as link:
            state = await federation.joined(link)
            assert link.changes.is_offered
            stream = link.changes
            assert await stream.is_held(state.sequence)
            assert await stream.wait_for_change(state.sequence, 0.1) is None
            await federation.start_run()
            told, asked = await open_state(stream, state.sequence), await link.fetch_run(None, 0.0)
            assert told.model_dump(exclude={"seconds_left"}) == asked.model_dump(exclude={"seconds_left"})
            await stream.close()


async def test_a_resumed_stream_tells_of_the_last_change_alone(tmp_path: Path) -> None:
    """Whoever knows the last change hears of nothing; who has missed several hears of the last one."""
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north") as link:
            first = await federation.joined(link)
            await federation.start_run()
            await federation.cancel_run()
            last = await link.fetch_run(None, 0.0)
            stream = await link.open_stream(first.sequence)
            event = await stream.next_change()
            assert event is not None and event.sequence == last.sequence > first.sequence + 1
            await stream.aclose()
            again = link.changes
            assert await again.is_held(last.sequence) and await again.wait_for_change(last.sequence, 0.2) is None
            await again.close()


async def test_clients_with_different_standings_ask_for_their_own_state(tmp_path: Path) -> None:
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north") as north, federation.connected("south") as south:
            await federation.joined(south)
            state = await federation.joined(north)
            stream = north.changes
            assert await stream.is_held(state.sequence)
            await federation.start_run(clients=2)
            known = await open_state(stream, state.sequence)
            await federation.operate("POST", "/v1/clients/south/quarantine", json={"reason": "a test"})
            event = await stream.wait_for_change(known.sequence, LONGEST_SECONDS)
            assert event is not None and event.state is None
            assert (await north.fetch_run(None, 0.0)).standing == "expected"
            await stream.close()


@pytest.mark.usefixtures("short_beats")
async def test_a_revoked_key_ends_the_stream(tmp_path: Path) -> None:
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north") as link:
            state = await federation.joined(link)
            stream = await link.open_stream(state.sequence)
            public_file("north", federation.settings.registry).unlink()
            assert await stream.next_change() is None
            await stream.aclose()
            with pytest.raises(AuthenticationError):
                await link.open_stream(state.sequence)
            assert len(federation.coordinator.federation.broadcaster) == 0


@pytest.mark.usefixtures("short_beats")
@pytest.mark.parametrize("kept_back", ["everything", "what follows"])
async def test_a_proxy_that_keeps_answers_back_makes_the_client_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept_back: str
) -> None:
    monkeypatch.setattr("client_service.boundary.event_stream.BEAT_SECONDS", 1.0)  # none comes however long it waits
    held = False

    def keep_back(piece: bytes) -> bytes:
        nonlocal held
        begins = b"text/event-stream" in piece
        held = held or begins
        return b"" if held and not (begins and kept_back == "what follows") else piece

    with serve_federation(tmp_path) as federation:
        async with relayed(federation.url, keep_back) as url, federation.connected("north", url=url) as link:
            state = await federation.joined(link)
            stream = link.changes
            if await stream.is_held(state.sequence):
                assert await stream.wait_for_change(state.sequence, LONGEST_SECONDS) is None
            assert not await stream.is_held(state.sequence)
            held = False
            await federation.start_run()
            assert (await link.fetch_run(state.sequence, LONGEST_SECONDS)).run == "run-1"
            await stream.close()


async def test_an_event_that_a_proxy_has_changed_ends_the_stream(tmp_path: Path) -> None:
    with serve_federation(tmp_path) as federation:
        async with relayed(federation.url, change_seed) as url, federation.connected("north", url=url) as link:
            state = await federation.joined(link)
            stream = await link.open_stream(state.sequence)
            await federation.start_run()
            with pytest.raises(UnavailableError, match="got another signature"):
                await stream.next_change()
            await stream.aclose()


def change_seed(piece: bytes) -> bytes:
    """An event with another seed of the run, and everything else as it is."""
    return piece.replace(b'"seed":0', b'"seed":1') if b'"kind":"change"' in piece else piece


@pytest.mark.parametrize("follows", ["a change", "nothing"])
async def test_a_proxy_that_ends_each_stream_at_its_beginning_makes_the_client_poll(
    tmp_path: Path, follows: str
) -> None:
    """Its end is an orderly one: the first event is the aggregator's own, and the last chunk anybody's."""
    with serve_federation(tmp_path) as federation:
        async with relayed(federation.url, end_early) as url, federation.connected("north", url=url) as link:
            state = await federation.joined(link)
            if follows == "a change":
                await federation.start_run()
            stream = link.changes
            assert await stream.is_held(state.sequence)
            assert await stream.wait_for_change(state.sequence, LONGEST_SECONDS) is None
            assert not await stream.is_held(state.sequence), "it polls, and pauses before it tries again"
            await stream.close()


def end_early(piece: bytes) -> bytes:
    """The head of a stream with its first event, and the end of the answer."""
    first, end, _ = piece.partition(b"==\n\n\r\n")
    return first + end + b"0\r\n\r\n" if b'"kind":"opened"' in piece else piece


async def test_a_client_of_an_aggregator_without_streams_polls_and_asks_for_none(tmp_path: Path) -> None:
    """An older aggregator sends no offer; a call that it does not know would be a stranger's in its record."""
    with serve_federation(tmp_path) as federation:
        older = lambda piece: piece.replace(b"link: <", b"other: <")  # noqa: E731
        async with relayed(federation.url, older) as url, federation.connected("north", url=url) as link:
            state = await federation.joined(link)
            assert not link.changes.is_offered and not await link.changes.is_held(state.sequence)
            assert (await link.fetch_run(state.sequence, 0.1)).sequence == state.sequence
            ledger = (tmp_path / "north.jsonl").read_text(encoding="utf-8")
            assert '"call":"current"' in ledger.replace(" ", "") and "changes" not in ledger


async def test_a_client_without_streams_polls_an_aggregator_that_offers_them(tmp_path: Path) -> None:
    """An older client takes the answer as it always was: the offer is a header, not a field."""
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north") as link:
            state = await federation.joined(link)
            await federation.start_run()
            later = await link.fetch_run(state.sequence, 2.0)
            assert later.sequence > state.sequence and len(federation.coordinator.federation.broadcaster) == 0


async def test_an_aggregator_that_ends_ends_the_stream_and_is_followed_after_its_restart(tmp_path: Path) -> None:
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north") as link:
            state = await federation.joined(link)
            stream = await link.open_stream(state.sequence)
            federation.coordinator.wind_down()
            assert await stream.next_change() is None
            await stream.aclose()
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north", federation.keys["north"]) as link:
            again = await federation.joined(link)
            assert again.sequence == state.sequence
            stream = await link.open_stream(again.sequence)
            await federation.start_run()
            event = await stream.next_change()
            assert event is not None and event.sequence > state.sequence
            await stream.aclose()


async def test_opening_a_stream_uploads_nothing_and_is_in_the_ledger(tmp_path: Path) -> None:
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north") as link:
            state = await federation.joined(link)
            before = link.traffic.up
            stream = await link.open_stream(state.sequence)
            await stream.aclose()
            assert link.traffic.up == before
            lines = [json.loads(line) for line in (tmp_path / "north.jsonl").read_text(encoding="utf-8").splitlines()]
            intent, outcome = lines[-2:]
            assert (intent["call"], intent["bytes"], outcome["status"]) == ("changes", 0, 200)
            assert outcome["of"] == intent["sequence"] and outcome["bytes"] > 0


async def test_a_stream_that_does_not_open_has_one_outcome_in_the_ledger(tmp_path: Path) -> None:
    strange = lambda piece: piece.replace(b'"kind":"opened"', b'"kind":"change"')  # noqa: E731
    with serve_federation(tmp_path) as federation:
        async with relayed(federation.url, strange) as url, federation.connected("north", url=url) as link:
            state = await federation.joined(link)
            for _ in range(2):
                with pytest.raises(UnavailableError):
                    await link.open_stream(state.sequence)
        lines = [json.loads(line) for line in (tmp_path / "north.jsonl").read_text(encoding="utf-8").splitlines()]
        intents = [one["sequence"] for one in lines if one.get("call") == "changes" and one["kind"] == "intent"]
        outcomes = [one for one in lines if one.get("of") in intents]
        assert [one["kind"] for one in outcomes] == ["outcome", "polls"] and outcomes[1]["n"] == 1
        assert all(one["bytes"] > 0 for one in outcomes)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("behind", [b"", b"GET /health/live HTTP/1.1\r\n"])
async def test_a_connection_is_held_for_one_whole_get_alone(
    tmp_path: Path, method: str, pieces: int, behind: bytes
) -> None:
    """What is behind the request is not answered, and nothing follows the head of an answer to HEAD."""
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north") as link:
            state = await federation.joined(link)
        address = federation.url.removeprefix("http://")
        who = Signatory("north", federation.keys["north"])
        head = RequestHead(method, f"{CHANGES}?after={state.sequence}", address)
        target = RequestTarget.of(method, head.target.encode())
        signed = sign_request(target, b"", who, created=int(time.time()), nonce="ab" * 16)
        lines = [f"{name}: {value}\r\n" for name, value in (*head.headers(), *signed.items())]
        request = f"{method} {head.target} HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + behind
        reader, writer = await asyncio.open_connection(*address.split(":"))
        if pieces == 2:
            writer.write(request[:40])
            await asyncio.sleep(0.05)
        writer.write(request[40:] if pieces == 2 else request)
        came = b""
        with suppress(TimeoutError, ConnectionResetError):
            async with asyncio.timeout(0.5):
                while piece := await reader.read(1 << 16):
                    came += piece
        held = len(federation.coordinator.federation.broadcaster)
        writer.close()
        if method == "HEAD":
            assert came.startswith(b"HTTP/1.1 404 ") and came.index(b"\r\n\r\n") + 4 == len(came) and not held
        elif behind:
            assert not held and b'"kind":"opened"' not in came
        else:
            assert held == 1 and came.count(b'"kind":"opened"') == 1


@pytest.mark.parametrize("ends", ["orderly", "cut off"])
async def test_streams_that_come_and_go_leave_nothing_open(tmp_path: Path, ends: str) -> None:
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north") as link:
            state = await federation.joined(link)
            open_before = set(os.listdir("/proc/self/fd"))
            for _ in range(20):
                stream = await link.open_stream(state.sequence)
                if ends == "orderly":
                    federation.coordinator.federation.broadcaster._end_all("a test")
                    assert await stream.next_change() is None
                await stream.aclose()
            async with asyncio.timeout(LONGEST_SECONDS):
                while len(federation.coordinator.federation.broadcaster):
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert len(set(os.listdir("/proc/self/fd")) - open_before) <= 2
            assert not federation.coordinator.federation.broadcaster._of


async def test_a_third_stream_of_a_client_ends_its_first(tmp_path: Path) -> None:
    with serve_federation(tmp_path) as federation:
        async with federation.connected("north") as link:
            state = await federation.joined(link)
            streams = [await link.open_stream(state.sequence) for _ in range(3)]
            assert await streams[0].next_change() is None
            assert len(federation.coordinator.federation.broadcaster) == 2
            for one in streams:
                await one.aclose()
