"""A ledger with a head opens after every crash, and not after a cut; what its head tells is durable in time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_service.boundary.gate import Boundary, GateTransport
from client_service.boundary.ledger import LEDGER, Ledger
from client_service.boundary.ledger_heads import LAG, NAME, HeadedLedger, LedgerHead, LedgerHeads
from shared.errors import DataError
from shared.method.declaration import Declaration
from shared.protocol.request_heads import USER_AGENT
from shared.protocol.schemas import JoinIn
from shared.protocol.signing.keys import new_key

KEY = new_key()


def heads_in(state: Path) -> LedgerHeads:
    return LedgerHeads(state, KEY)


def ledger_in(state: Path) -> HeadedLedger:
    return HeadedLedger(heads_in(state), LEDGER)


def told(state: Path) -> int:
    """Entries of which the head on the disk tells."""
    head = heads_in(state).head(LEDGER)
    return 0 if head is None else head.count


def test_a_question_waits_for_the_head_and_a_body_does_not(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    ledger.append("intent")
    assert told(tmp_path) == 0
    ledger.append("intent", durable_head=True)
    assert told(tmp_path) == 2
    for _ in range(LAG - 1):
        ledger.append("intent")
    assert told(tmp_path) == 2
    ledger.append("intent")
    assert told(tmp_path) == 2 + LAG
    ledger.append("intent")
    ledger.save_head()
    assert told(tmp_path) == 3 + LAG


def test_each_entry_says_that_a_head_covers_it_and_the_first_is_written_after_the_head(tmp_path: Path) -> None:
    heads = heads_in(tmp_path)
    ledger = HeadedLedger(heads, LEDGER)
    ledger.append("intent")
    [entry] = ledger.entries()
    assert len(entry["mac"]) == 64 and heads.path.exists() and ledger.verify() == 1


@pytest.mark.parametrize("beyond", [0, 1, LAG])
def test_a_ledger_that_a_crash_left_longer_than_its_head_goes_on(tmp_path: Path, beyond: int) -> None:
    ledger = ledger_in(tmp_path)
    ledger.append("intent", durable_head=True)
    before = (tmp_path / NAME).read_bytes()
    for _ in range(beyond):
        ledger.append("intent")
    (tmp_path / NAME).write_bytes(before)  # the crash came before the head was written
    with (tmp_path / LEDGER).open("a") as file:
        file.write('{"sequence":')  # and in the middle of a line
    again = ledger_in(tmp_path)
    assert len(again) == 1 + beyond == again.verify() and again.append("intent", durable_head=True) == 2 + beyond
    assert told(tmp_path) == 2 + beyond


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("calls", range(6))
def test_wherever_an_entry_is_cut_off_the_ledger_opens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, calls: int
) -> None:
    """The process is killed at the so many-th time that it asks the system for this."""
    left = [calls]

    def killing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*what: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return real(*what)

        return call

    written = 0
    with monkeypatch.context() as patched:
        patched.setattr(os, step, killing(getattr(os, step)))
        try:
            ledger = ledger_in(tmp_path)
            for _ in range(3):
                ledger.append("intent", durable_head=True)
                written += 1
        except Killed:
            pass
    again = ledger_in(tmp_path)
    assert len(again) >= written and again.verify() == len(again)
    again.append("intent", durable_head=True)


def test_a_ledger_of_an_older_version_is_adopted_once(tmp_path: Path) -> None:
    older = Ledger(tmp_path / LEDGER)
    for _ in range(3):
        older.append("intent")
    heads = heads_in(tmp_path)
    HeadedLedger(heads, LEDGER).save_head()
    assert heads.adopted == {LEDGER: 3} and told(tmp_path) == 3
    again = heads_in(tmp_path)
    HeadedLedger(again, LEDGER)
    assert again.adopted == {}
    (tmp_path / NAME).unlink()
    ledger_in(tmp_path)  # as long as no entry says that there was a head
    ledger_in(tmp_path).append("intent")
    (tmp_path / NAME).unlink()
    with pytest.raises(DataError, match="expected its head in"):
        ledger_in(tmp_path)


def test_what_is_beyond_the_head_must_follow_from_it_and_be_little(tmp_path: Path) -> None:
    ledger = ledger_in(tmp_path)
    ledger.append("intent", durable_head=True)
    before, path = (tmp_path / NAME).read_bytes(), tmp_path / LEDGER
    ledger.append("intent")
    lines = path.read_text()
    path.write_text(lines.replace('"sequence":2', '"sequence":7'))
    with pytest.raises(DataError, match="line 2: expected the chain to hold"):
        ledger_in(tmp_path)
    path.write_text(lines)
    for _ in range(LAG):
        ledger.append("intent")
    (tmp_path / NAME).write_bytes(before)
    with pytest.raises(DataError, match=f"expected at most {LAG} entries beyond the 1"):
        ledger_in(tmp_path)


@pytest.mark.parametrize("mac", [{}, {"mac": "0" * 64}])
def test_who_has_not_the_key_can_write_nothing_beyond_the_head(tmp_path: Path, mac: dict[str, str]) -> None:
    """Such as an adoption, by which a client would go on without an entry that the aggregator tells of."""
    ledger_in(tmp_path).append("intent", durable_head=True)
    Ledger(tmp_path / LEDGER).append("adopted", reason="by nobody", gave_up="ab" * 16, **mac)
    with pytest.raises(DataError, match="line 2: expected the MAC that this client's key makes"):
        ledger_in(tmp_path)


def test_an_entry_of_one_ledger_is_none_of_another(tmp_path: Path) -> None:
    heads = heads_in(tmp_path)
    one, two = HeadedLedger(heads, LEDGER), HeadedLedger(heads, "other.jsonl")
    one.save_head(), two.save_head()
    two.append("note")
    (tmp_path / LEDGER).write_bytes((tmp_path / "other.jsonl").read_bytes())
    with pytest.raises(DataError, match="line 1: expected the MAC"):
        ledger_in(tmp_path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda said: said | {"mac": "0" * 64}, "it was changed"),
        (lambda said: said | {"mac": "\u00e9"}, "it was changed"),
        (lambda said: said | {"heads": {LEDGER: {"count": -1, "hash": "0" * 64}}}, "got a file that holds none"),
        (lambda said: said | {"heads": {LEDGER: {"count": 0, "hash": "0" * 64}}}, "it was changed"),
        (lambda said: said | {"digests": {"privacy/secret": "0" * 64}}, "it was changed"),
        (lambda said: said | {"key": "0" * 64}, "made with another"),
        (lambda said: said | {"more": 1}, "got a file that holds none"),
        (lambda _: [], "got a file that holds none"),
    ],
)
def test_heads_that_this_silo_has_not_written_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], says: str
) -> None:
    ledger_in(tmp_path).append("intent", durable_head=True)
    path = tmp_path / NAME
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(DataError, match=says):
        heads_in(tmp_path)


def test_the_file_is_its_owner_s_alone_and_tells_nothing_of_the_key(tmp_path: Path) -> None:
    ledger_in(tmp_path).append("intent", durable_head=True)
    path = tmp_path / NAME
    assert path.stat().st_mode & 0o777 == 0o600 and KEY.private_bytes_raw().hex() not in path.read_text()


def test_heads_may_lie_in_a_folder_of_their_own_and_tell_of_several_ledgers(tmp_path: Path) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    heads = LedgerHeads(state, KEY, elsewhere)
    one, two = HeadedLedger(heads, LEDGER), HeadedLedger(heads, "other/kept.jsonl")
    one.append("intent")
    two.append("note", durable_head=True)
    again = LedgerHeads(state, KEY, elsewhere)
    assert list(again) == [LEDGER, "other/kept.jsonl"] and [p.name for p in elsewhere.iterdir()] == [NAME]
    assert [again.head(name).count for name in again] == [1, 1]  # type: ignore[union-attr]
    assert again.head("third.jsonl") is None and again.head(LEDGER) == LedgerHead(1, one.last_hash)


@pytest.mark.anyio
async def test_the_head_tells_of_a_body_before_it_leaves(tmp_path: Path) -> None:
    seen: list[int] = []

    def answer(_: httpx.Request) -> httpx.Response:
        seen.append(told(tmp_path))
        return httpx.Response(200, stream=httpx.ByteStream(b"{}"))

    declaration = Declaration(strategy="lpsfed", tensors=(), scalars=())
    boundary = Boundary("east", httpx.URL("http://aggregator"), declaration, counts=False, max_upload_bytes=1)
    transport = GateTransport(httpx.MockTransport(answer), boundary, ledger_in(tmp_path), KEY)
    said = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
    async with httpx.AsyncClient(transport=transport, base_url="http://aggregator", headers=said) as http:
        join = JoinIn(client="east", declaration=declaration).model_dump_json()
        for _ in range(2):
            await http.get("/v1/runs/run-1/model")
            await http.post("/v1/clients", content=join, headers={"Content-Type": "application/json"})
    assert seen == [0, 3, 3, 6]  # the second time the question is counted, in a line before the join
