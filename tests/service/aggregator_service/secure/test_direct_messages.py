"""A message as the gate writes it is read without the framework; all others are answered by the framework's words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from aggregator_service.http.direct_calls import DirectCall

if TYPE_CHECKING:
    import httpx
    from conftest import Masking, Secured

pytestmark = pytest.mark.anyio
OF_ITS_OWN = ("signature", "signature-input", "x-request-id", "content-digest", "content-length")
PHASES = ("keys", "shares", "checks", "masked", "consents", "answers")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each message was read directly."""
    found, before = list[bool](), DirectCall.read_message

    def read_message(call: DirectCall, values: Any, body: bytes) -> bool:
        found.append(before(call, values, body))
        return found[-1]

    monkeypatch.setattr(DirectCall, "read_message", read_message)
    return found


def comparable(answer: httpx.Response) -> tuple[Any, ...]:
    kept = [(name, value) for name, value in answer.headers.multi_items() if name not in OF_ITS_OWN]
    told = answer.json() | {"request_id": None} if answer.status_code >= 400 else answer.content
    return answer.status_code, kept, told


async def told_both_ways(one: Masking, call: str, body: bytes, *, query: str = "") -> list[tuple[Any, ...]]:
    """The answers to one request without the framework's reading, as far as that goes, and with it alone."""
    found = []
    for only_by_framework in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if only_by_framework:
                patch.setattr(DirectCall, "read_values", lambda *_: None)
            found.append(comparable(await one.said(call, body, at=one.path(call) + query)))
    return found


async def test_every_message_of_a_round_is_read_directly_and_answered_as_by_the_framework(
    secured: Secured, read: list[bool]
) -> None:
    async with secured(3, rounds=2) as made:
        ada = made.clients["ada"]
        read.clear()  # the joins, which are written otherwise here
        for phase in PHASES:
            await made.phase(phase, "ada")
            if phase != "masked":
                held = {"shares": ada.sharing, "checks": ada.checked}.get(phase, ada.begun)
                message = ada.consent if phase == "consents" else None if held is None else held.message
                body = await ada.answer() if phase == "answers" else message.model_dump_json().encode()
                assert read and all(read), phase
                for query in ("", "?wait=0"):
                    direct, framework = await told_both_ways(ada, phase, body, query=query)
                    assert direct == framework and direct[0] == (422 if query and phase == "answers" else 204)
                read.clear()
            await made.phase(phase, "bob", "cyd")
            read.clear()


def forms(body: bytes) -> dict[str, bytes]:
    content = json.loads(body)
    return {
        "spaces": json.dumps(content).encode(),
        "order": json.dumps(dict(reversed(content.items())), separators=(",", ":")).encode(),
        "default left out": json.dumps({k: v for k, v in content.items() if k != "noised"}).encode(),
        "escaped": body.replace(b'"run-1"', b'"\\u0072un-1"'),
        "twice": body[:-1] + b',"round":1}',
        "text for a number": body.replace(b'"round":1,', b'"round":"1",'),
        "1.0": body.replace(b'"round":1,', b'"round":1.0,'),
        "unknown": body[:-1] + b',"more":1}',
        "missing": json.dumps({k: v for k, v in content.items() if k != "mask"}).encode(),
        "another type": body.replace(b'"round":1,', b'"round":[],'),
        "infinite": body.replace(b'"round":1,', b'"round":Infinity,'),
        "no text": body.replace(b"run-1", b"run-\xff"),
        "half a pair": body.replace(b'"run-1"', b'"\\ud800"'),
        "mark": b"\xef\xbb\xbf" + body,
        "cut off": body[:-1],
        "more behind": body + b"{}",
        "list": b"[]",
        "null": b"null",
        "empty": b"",
        "deep": b"[" * 3000,
    }


async def test_a_message_in_any_other_form_is_taken_or_refused_as_by_the_framework(
    secured: Secured, read: list[bool]
) -> None:
    async with secured(3) as made:
        ada = made.clients["ada"]
        await made.phase("keys", "ada")
        assert ada.begun is not None
        body = ada.begun.message.model_dump_json().encode()
        read.clear()
        for form, other in forms(body).items():
            direct, framework = await told_both_ways(ada, "keys", other)
            assert direct == framework, form
        assert not any(read)
        for query in ("?wait=x", "?wait=0&wait=0", "?who=7", "?wait=%30"):
            direct, framework = await told_both_ways(ada, "keys", body, query=query)
            assert direct == framework and direct[0] in (204, 400, 422), query


async def test_a_longer_message_than_is_possible_is_refused_unread(secured: Secured, read: list[bool]) -> None:
    async with secured(3) as made:
        read.clear()
        direct, framework = await told_both_ways(made.clients["ada"], "keys", b" " * 600_000)
        assert direct == framework and direct[0] == 413 and not read


async def test_a_message_at_another_s_place_is_refused_before_it_is_read(secured: Secured, read: list[bool]) -> None:
    async with secured(3) as made:
        ada = made.clients["ada"]
        await made.phase("keys", "ada")
        assert ada.begun is not None
        read.clear()
        body, told = ada.begun.message.model_dump_json().encode(), []
        for only_by_framework in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                if only_by_framework:
                    patch.setattr(DirectCall, "read_values", lambda *_: None)
                told.append(comparable(await ada.said("keys", body, at=ada.path("keys", "bob"))))
        assert told[0] == told[1] and told[0][0] == 403 and not read
