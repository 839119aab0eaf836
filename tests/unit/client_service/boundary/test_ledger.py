"""What was sent is on record before it leaves, in a chain that shows every later change."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from client_service.boundary.aggregator_api import connect
from client_service.boundary.gate import Boundary
from client_service.boundary.ledger import GENESIS, Ledger
from shared.errors import DataError
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import Parameters
from shared.protocol.schemas import ReceiptOut
from shared.protocol.signing.keys import new_key
from shared.protocol.wire import encode_body
from shared.timeouts import CallLimits

LINES = 5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a ledger with five entries."""
    ledger = Ledger(tmp_path / "state" / "ledger.jsonl")
    for number in range(1, LINES + 1):
        assert ledger.append("intent", call="model", bytes=number) == number
    return tmp_path / "state" / "ledger.jsonl"


def damage(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


def test_entries_are_numbered_timed_and_each_holds_the_hash_of_the_one_before(path: Path) -> None:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["sequence"] for entry in entries] == [1, 2, 3, 4, 5]
    assert [entry["bytes"] for entry in entries] == [1, 2, 3, 4, 5]
    assert all(entry["time"].endswith("+00:00") for entry in entries)
    previous = GENESIS
    for entry in entries:
        content = {name: value for name, value in entry.items() if name != "hash"}
        assert entry["previous"] == previous
        previous = hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        assert entry["hash"] == previous
    assert Ledger(path).verify() == LINES


def altered(lines: list[str]) -> list[str]:
    return [*lines[:2], lines[2].replace('"bytes":3', '"bytes":4'), *lines[3:]]


def removed(lines: list[str]) -> list[str]:
    return [*lines[:2], *lines[3:]]


def put_in(lines: list[str]) -> list[str]:
    return [*lines[:2], lines[1], *lines[2:]]


def exchanged(lines: list[str]) -> list[str]:
    return [*lines[:2], lines[3], lines[2], lines[4]]


def scribbled(lines: list[str]) -> list[str]:
    return [*lines[:2], "scribble\n", *lines[3:]]


def emptied(lines: list[str]) -> list[str]:
    return [*lines[:2], "[]\n", *lines[3:]]


@pytest.mark.parametrize("change", [altered, removed, put_in, exchanged, scribbled, emptied])
def test_a_changed_line_is_found_and_named(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    damage(path, change)
    with pytest.raises(DataError, match="line 3: expected the chain to hold"):
        Ledger(path).verify()


def test_a_line_that_was_altered_and_hashed_anew_breaks_the_next_one(path: Path) -> None:
    def forged(lines: list[str]) -> list[str]:
        entry = {name: value for name, value in json.loads(lines[2]).items() if name != "hash"} | {"bytes": 99}
        text = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode()
        return [*lines[:2], json.dumps(entry | {"hash": hashlib.sha256(text).hexdigest()}) + "\n", *lines[3:]]

    damage(path, forged)
    with pytest.raises(DataError, match="line 4"):
        Ledger(path).verify()


def test_lines_taken_from_the_end_are_missed_by_the_process_that_wrote_them(path: Path) -> None:
    ledger = Ledger(path)
    damage(path, lambda lines: lines[:3])
    with pytest.raises(DataError, match="line 4: expected 5 entries"):
        ledger.verify()


def test_damage_does_not_keep_a_client_from_starting_and_going_on(path: Path) -> None:
    damage(path, lambda lines: [*lines[:4], "scribble\n"])
    ledger = Ledger(path)
    assert ledger.append("intent", call="model") == 6
    assert [entry.get("sequence") for entry in ledger.entries()] == [1, 2, 3, 4, None, 6]
    with pytest.raises(DataError, match="line 5"):
        ledger.verify()


@pytest.mark.parametrize("cut", ["{", '{"sequence":6,"time":"20', '{"sequence":6,"kind":"intent"}', "\0\0\0"])
def test_a_last_line_that_a_crash_cut_off_is_taken_away_and_the_chain_goes_on(path: Path, cut: str) -> None:
    whole = path.read_text()
    path.write_text(whole + cut)
    ledger = Ledger(path)
    assert path.read_text() == whole
    assert ledger.append("outcome", of=5) == 6
    assert ledger.verify() == 6


def test_a_restart_goes_on_at_the_right_number_and_hash(path: Path) -> None:
    last = json.loads(path.read_text().splitlines()[-1])
    again = Ledger(path)
    assert again.append("outcome", of=5) == 6
    entries = list(again.entries(after=5))
    assert [(entry["sequence"], entry["previous"]) for entry in entries] == [(6, last["hash"])]
    assert again.verify() == Ledger(path).verify() == 6


def test_pages_follow_one_another(path: Path) -> None:
    ledger = Ledger(path)

    def page(after: int, limit: int | None) -> list[int]:
        return [entry["sequence"] for entry in ledger.entries(after, limit)]

    assert page(0, 2) == [1, 2]
    assert page(2, 2) == [3, 4]
    assert page(4, 2) == [5]
    assert page(5, 2) == page(99, None) == []
    assert page(1, None) == [2, 3, 4, 5]


def test_a_new_ledger_is_empty_and_holds(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert (list(ledger.entries()), ledger.verify()) == ([], 0)


def counting(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where each reading of the ledger began."""
    begun, entries = [], ledger.entries

    def reading(after: int = 0, limit: int | None = None) -> Iterator[dict[str, Any]]:
        begun.append(after)
        return entries(after, limit)

    monkeypatch.setattr(ledger, "entries", reading)
    return begun


def test_only_what_has_been_appended_since_is_verified(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(path)
    begun = counting(ledger, monkeypatch)
    assert [ledger.verify(), ledger.verify()] == [LINES, LINES]
    ledger.append("outcome", of=5)
    assert [ledger.verify(), ledger.verify()] == [LINES + 1, LINES + 1]
    assert begun == [0, LINES, LINES, LINES + 1]


@pytest.mark.parametrize("change", [altered, exchanged, scribbled, emptied, removed])
@pytest.mark.parametrize("then", ["verify", "append"])
def test_a_change_of_what_was_verified_before_is_found(
    path: Path, change: Callable[[list[str]], list[str]], then: str
) -> None:
    ledger = Ledger(path)
    ledger.verify()
    damage(path, change)
    if then == "append":
        ledger.append("outcome", of=5)
    for _ in range(2):
        with pytest.raises(DataError, match="line 3"):
            ledger.verify()


def test_a_file_that_is_another_one_by_now_is_verified_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(path)
    ledger.verify()
    begun = counting(ledger, monkeypatch)
    copy = path.with_suffix(".copy")
    shutil.copy2(path, copy)
    copy.replace(path)
    assert [ledger.verify(), ledger.verify()] == [LINES, LINES]
    ledger.append("outcome", of=5)
    assert [ledger.verify(), ledger.verify()] == [LINES + 1, LINES + 1]
    assert begun == [0, 0, 0, LINES + 1]


SHAPES = {"pooling.w": (2, 3), "predictive.b": (1,)}
DECLARED = Declaration(
    strategy="lpsfed", tensors=tuple(TensorSpec(name=n, shape=s) for n, s in SHAPES.items()), scalars=("rho",)
)
UPDATE = "/v1/runs/run-1/rounds/7/clients/east/update"
RECEIPT = ReceiptOut(run="run-1", round=7, client="east", digest="d" * 64, size=9, received_at="2026-01-01T00:00:00Z")


@pytest.mark.anyio
async def test_an_update_is_on_record_by_name_shape_and_hash_before_it_leaves(tmp_path: Path) -> None:
    path, seen = tmp_path / "ledger.jsonl", []

    def answer(_: httpx.Request) -> httpx.Response:
        seen.append([json.loads(line) for line in path.read_text().splitlines()])
        return httpx.Response(201, stream=httpx.ByteStream(RECEIPT.model_dump_json().encode()))

    arrays = {name: np.arange(np.prod(shape), dtype=np.float32).reshape(shape) for name, shape in SHAPES.items()}
    body = encode_body(Parameters(arrays, {"rho": 0.5}))
    boundary = Boundary("east", httpx.URL("http://aggregator"), DECLARED, counts=False, max_upload_bytes=10_000)
    ledger, inner, key = Ledger(path), httpx.MockTransport(answer), new_key()
    async with connect(boundary, ledger, key, limits=CallLimits(), inner=inner) as aggregator:
        await aggregator.upload("run-1", 7, body)
    [[intent]] = seen  # at the moment when the request arrived
    assert (intent["kind"], intent["call"], intent["run"], intent["round"]) == ("intent", "update", "run-1", "7")
    assert (intent["bytes"], intent["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
    assert intent["scalars"] == {"rho": 0.5}
    assert intent["tensors"] == [
        {
            "name": name,
            "dtype": "F32",
            "shape": list(arrays[name].shape),
            "bytes": arrays[name].size * 4,
            "sha256": hashlib.sha256(arrays[name].astype("<f4").tobytes()).hexdigest(),
        }
        for name in ("pooling.w", "predictive.b")
    ]
    outcome = list(ledger.entries())[-1]
    assert (outcome["kind"], outcome["of"], outcome["status"]) == ("outcome", 1, 201)
    assert outcome["receipt"] == RECEIPT.model_dump()
    text, private = path.read_text(), key.private_bytes_raw()
    assert private.hex() not in text and base64.b64encode(private).decode() not in text
