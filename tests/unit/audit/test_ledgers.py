"""A client that rewrites its ledger and makes the chain anew: what the ledger then tells fails by itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from client_service.boundary.ledger import Ledger
from shared.method.declaration import Counts
from shared.protocol.schemas import JoinIn

if TYPE_CHECKING:
    from conftest import Entry, Tampered

Change = Callable[["Entry"], object]


def where(of: Callable[[Entry], object], what: Change) -> Change:
    """A change of these entries alone."""
    return lambda entry: what(entry) if of(entry) else None


def updates(what: Change) -> Change:
    return where(lambda entry: entry.get("call") == "update", what)


def receipts(what: Change) -> Change:
    return where(lambda entry: entry.get("receipt"), what)


def anchors(**what: Any) -> Change:
    return where(lambda entry: entry.get("call") == "anchor", lambda entry: entry.update(what))


LONG = [{"name": "embedding", "dtype": "F32", "shape": [16, 4], "bytes": 256, "sha256": "e" * 64}]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda entry: entry.update(tensors=entry["tensors"] + LONG), "undeclared tensor 'embedding'"),
        (lambda entry: entry.update(tensors=entry["tensors"][:1]), "no tensor 'predictive.bias'"),
        (lambda entry: entry["tensors"][0].update(shape=[3, 2]), "tensor 'pooling.weight' in another form"),
        (lambda entry: entry["tensors"][0].update(dtype="F64"), "tensor 'pooling.weight' in another form"),
        (lambda entry: entry["tensors"][0].update(bytes=2400), "tensor 'pooling.weight' in another form"),
        (lambda entry: entry.update(tensors=entry["tensors"] * 2), "tensor 'pooling.weight' twice"),
        (lambda entry: entry["scalars"].update(recall=0.5), "undeclared scalar 'recall'"),
        (lambda entry: entry["scalars"].update(rho=float("inf")), "scalar 'rho' that is no finite number"),
        (lambda entry: entry["scalars"].pop("rho"), "other than its fields make"),
    ],
)
def test_other_fields_than_declared_are_named(mine: Tampered, change: Change, words: str) -> None:
    mine.rewrite("client-2", updates(change))
    broken = mine.broken()
    assert list(broken) == ["fields"] and words in broken["fields"] and "client-2, run-1 round 1" in broken["fields"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda entry: entry.update(receipt=None), "accepted without a receipt"),
        (lambda entry: entry["receipt"].update(digest="d" * 64), "a receipt for something else"),
        (lambda entry: entry["receipt"].update(client="client-2"), "a receipt for something else"),
    ],
)
def test_a_receipt_must_be_for_what_left(mine: Tampered, change: Change, words: str) -> None:
    mine.rewrite("client-1", receipts(change))
    assert list(mine.broken()) == ["receipts"] and words in mine.broken()["receipts"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (anchors(call="users"), "undeclared call 'users'"),
        (anchors(bytes=7), "a body of 7 bytes"),
        (anchors(to="http://elsewhere"), "calls to 2 places: 'http://aggregator:8800', 'http://elsewhere'"),
        (anchors(kind="note"), "neither an intent nor the outcome of one"),
    ],
)
def test_other_calls_than_declared_are_named(mine: Tampered, change: Change, words: str) -> None:
    mine.rewrite("client-1", change)
    assert list(mine.broken()) == ["calls"] and words in mine.broken()["calls"]


def test_a_second_outcome_of_one_call_is_none_of_it(mine: Tampered) -> None:
    mine.rewrite("client-1", where(lambda entry: entry["kind"] == "outcome", lambda entry: entry.update(of=1)))
    assert "entry 4 is neither an intent nor the outcome of one" in mine.broken()["calls"]


COUNTED = {"kind": "polls", "of": 3, "n": 4, "from": "", "to": "", "bytes": 0}


@pytest.mark.parametrize(
    ("change", "held"),
    [
        ({}, True),
        ({"n": 0}, False),
        ({"n": -4}, False),
        ({"of": 99}, False),
        ({"of": 1}, False),  # a join, which had a body
        ({"call": "update"}, False),
        ({"round": "9"}, False),
        ({"status": 204}, False),
    ],
)
def test_a_count_of_calls_must_be_of_calls_like_an_earlier_one_without_a_body(
    mine: Tampered, change: dict[str, Any], held: bool
) -> None:
    ledger = appended(mine)
    entries = list(ledger.entries())
    earlier = next(one for one in entries if one["kind"] == "intent" and not one["bytes"])
    answer = next(one for one in entries if one.get("of") == earlier["sequence"])
    same = {name: earlier[name] for name in ("call", "run", "round") if name in earlier} | {"status": answer["status"]}
    before = next(one for one in mine.report().findings if one.name == "calls").found
    ledger.append(**{**COUNTED, **same, "of": earlier["sequence"], **change})
    mine.change("client-1", entries=tuple(ledger.entries()))
    assert (mine.broken() == {}) == held
    if held:
        after = next(one for one in mine.report().findings if one.name == "calls").found
        assert int(after.split()[0].replace(",", "")) == int(before.split()[0].replace(",", "")) + 4
    else:
        assert "counts calls that are not like an earlier one" in mine.broken()["calls"]


def appended(mine: Tampered) -> Ledger:
    """The first client's ledger, to which more can be written."""
    mine.rewrite("client-1", anchors())
    return Ledger(next(mine.folder.iterdir()))


def test_a_ledger_without_its_beginning_is_no_chain(mine: Tampered) -> None:
    mine.change("client-1", entries=mine.parts["client-1"].entries[2:])
    assert "client-1: entry 1 does not follow" in mine.broken()["chain"]


def test_entries_that_are_not_numbered_in_order_are_no_chain(mine: Tampered) -> None:
    *entries, last = mine.parts["client-1"].entries
    other = {key: value for key, value in last.items() if key != "hash"} | {"sequence": 99}
    text = json.dumps(other, sort_keys=True, separators=(",", ":"))
    mine.change("client-1", entries=(*entries, other | {"hash": hashlib.sha256(text.encode()).hexdigest()}))
    assert mine.broken() == {"chain": "client-1: the entries are not numbered from 1 on"}


def test_many_faults_are_counted_and_all_kept(mine: Tampered) -> None:
    for name in ("client-1", "client-2"):
        mine.rewrite(name, updates(lambda entry: entry["tensors"].clear()))
    [fields] = [one for one in mine.report().findings if one.name == "fields"]
    assert fields.found.endswith("; and 5 more") and len(fields.faults) == 8


def joins(what: Change) -> Change:
    return where(lambda entry: entry.get("call") == "join", what)


def test_a_join_says_who_and_what_is_declared_and_perhaps_three_counts(mine: Tampered) -> None:
    declaration, counts = mine.parts["client-1"].declaration, Counts(users=5, items=6, edges=7)
    assert declaration is not None
    body = JoinIn(client="client-1", declaration=declaration, counts=counts).model_dump_json().encode()
    size, digest = len(body), hashlib.sha256(body).hexdigest()
    first, *others = mine.parts["aggregator"].arrivals
    mine.change("aggregator", arrivals=(first.model_copy(update={"size": size, "digest": digest}), *others))
    mine.rewrite("client-1", joins(lambda entry: entry.update(bytes=size, sha256=digest)))
    assert list(mine.broken()) == ["fields"] and "another body than the declaration makes" in mine.broken()["fields"]
    mine.rewrite("client-1", joins(lambda entry: entry["join"].update(counts=counts.model_dump())))
    assert mine.broken() == {}
    assert any("client-1 has sent its numbers of users" in note for note in mine.report().notes)


def test_what_was_tried_and_did_not_arrive_is_no_failure(mine: Tampered) -> None:
    entries = mine.parts["client-1"].entries
    update = next(entry for entry in entries if entry.get("call") == "update")
    said = {key: update[key] for key in ("call", "to", "run", "round", "bytes", "sha256", "tensors", "scalars")}
    mine.rewrite("client-1", anchors())
    ledger = Ledger(next(mine.folder.iterdir()))
    lost = ledger.append("intent", **said)
    ledger.append("outcome", of=lost, error="ConnectError")
    ledger.append("intent", **said)  # the client was ended before the answer
    mine.change("client-1", entries=tuple(ledger.entries()))
    [record] = [one for one in mine.report().findings if one.name == "record"]
    assert mine.broken() == {} and "2 others did not arrive" in record.found
