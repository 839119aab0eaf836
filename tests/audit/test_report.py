"""The report on evidence as it should be, and on evidence that was tampered with: exactly one finding fails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aggregator_service.storage.arrivals import MOST_REFUSED as RECORDED
from audit.case import open_case
from audit.evidence import Evidence, Probe, Sent
from audit.probes import bodies
from audit.records import MOST_REFUSED
from audit.report import Report, report
from client_service.boundary.ledger import Ledger
from shared.errors import DataError
from shared.schemas import ArrivalOut, Counts, JoinIn

if TYPE_CHECKING:
    from conftest import Parts

Change = Callable[["Parts"], None]
UPDATE = "update"


def of(parts: Parts) -> Report:
    return report(open_case(tuple(parts.values())))


def broken(made: Report) -> list[str]:
    return [one.name for one in made.findings if not one.held]


def told(made: Report, name: str) -> str:
    return next(one.found for one in made.findings if one.name == name)


def changed(parts: Parts, name: str, **what: Any) -> None:
    parts[name] = parts[name].model_copy(update=what)


def rewritten(parts: Parts, name: str, folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A client that has changed its entries and made the chain anew."""
    ledger = Ledger(folder / f"{name}.jsonl")
    for entry in parts[name].entries:
        said = json.loads(json.dumps(entry))
        change(said)
        ledger.append(said["kind"], **{key: said[key] for key in said if key not in CHAINED})
    changed(parts, name, entries=tuple(ledger.entries()))


CHAINED = ("sequence", "time", "kind", "previous", "hash")


def only(kind: str, what: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    """A change of the updates' intents, or of their outcomes."""

    def change(entry: dict[str, Any]) -> None:
        if (kind == "intent" and entry.get("call") == UPDATE) or (kind == "outcome" and entry.get("receipt")):
            what(entry)

    return change


def anchors(**what: Any) -> Callable[[dict[str, Any]], None]:
    """A change of the questions for the anchor."""
    return lambda entry: entry.update(what) if entry.get("call") == "anchor" else None


@pytest.fixture
def mine(parts: Parts) -> Parts:
    """To be tampered with."""
    return dict(parts)


def test_what_is_as_it_should_be_holds_and_is_told_in_one_sentence(mine: Parts) -> None:
    made = of(mine)
    size = sum(one.size for one in mine["aggregator"].arrivals)
    assert broken(made) == [] and made.held
    assert made.verdict == (
        "Nothing undeclared crossed, and all that crossed is on record:"
        f" 6 bodies, {size:,} bytes, from 2 clients in 2 rounds."
    )
    assert any("headers" in line for line in made.not_covered) and any("no probe" in line for line in made.not_covered)


def test_it_shows_what_left_and_what_came_in(mine: Parts) -> None:
    made = of(mine)
    counts = {(one.client, one.call): (one.calls, one.bytes_down) for one in made.totals}
    assert counts["client-1", "anchor"] == (2, 2 * len(b"something"))
    assert counts["client-2", "update"][0] == 2 and counts["client-2", "join"][0] == 1
    [last] = [one for one in made.rounds if (one.client, one.round) == ("client-2", 2)]
    update = next(one for one in made.crossings["client-2"] if one["call"] == UPDATE and one["round"] == 2)
    assert (last.tensors, last.scalars, last.sha256, last.receipt) == (2, 2, update["sha256"], True)
    assert [tensor["shape"] for tensor in update["tensors"]] == [[2, 3], [1]] and update["scalars"]["margin"] == 2.2
    assert len(update["tensors"][0]["sha256"]) == len(update["answer_sha256"]) == 64
    assert Report.model_validate_json(made.model_dump_json()) == made


def altered(parts: Parts) -> None:
    entries = [dict(entry) for entry in parts["client-1"].entries]
    entries[3]["time"] = "2020-01-01T00:00:00.000+00:00"
    changed(parts, "client-1", entries=tuple(entries))


def cut(parts: Parts) -> None:
    """The last update's intent and all after it are gone; what is left is a chain."""
    entries = parts["client-1"].entries
    last = max(place for place, entry in enumerate(entries) if entry.get("call") == UPDATE)
    changed(parts, "client-1", entries=entries[:last])


def without_its_row(parts: Parts) -> None:
    arrivals = parts["aggregator"].arrivals
    gone = max(place for place, one in enumerate(arrivals) if one.call == UPDATE)
    changed(parts, "aggregator", arrivals=arrivals[:gone] + arrivals[gone + 1 :])


def beside_the_ledger(parts: Parts) -> None:
    arrivals = parts["aggregator"].arrivals
    more = arrivals[-1].model_copy(update={"sequence": 99, "digest": "f" * 64, "status": 422, "code": "protocol"})
    changed(parts, "aggregator", arrivals=(*arrivals, more))


def repeated(parts: Parts) -> None:
    """The same body once more than the ledger tells."""
    arrivals = parts["aggregator"].arrivals
    changed(parts, "aggregator", arrivals=(*arrivals, arrivals[-1].model_copy(update={"sequence": 99})))


def other_declaration(parts: Parts) -> None:
    ours = parts["aggregator"].declaration
    assert ours is not None
    changed(parts, "aggregator", declaration=ours.model_copy(update={"scalars": ("margin", "recall", "rho")}))


def forgotten_at_the_aggregator(parts: Parts) -> None:
    [run] = parts["aggregator"].runs
    first = run.rounds[0].model_copy(update={"participants": run.rounds[0].participants[:1]})
    changed(parts, "aggregator", runs=(run.model_copy(update={"rounds": (first, *run.rounds[1:])}),))


def other_body_at_the_aggregator(parts: Parts) -> None:
    """The round's record speaks of another digest than the arrival."""
    [run] = parts["aggregator"].runs
    held = [one.model_copy(update={"size": one.size + 1}) for one in run.rounds[0].participants]
    first = run.rounds[0].model_copy(update={"participants": tuple(held)})
    changed(parts, "aggregator", runs=(run.model_copy(update={"rounds": (first, *run.rounds[1:])}),))


def many_refused(parts: Parts) -> None:
    """As many as an aggregator records, all of them on the probes' account."""
    empty = parts["aggregator"].arrivals[0].model_copy(update={"size": 0, "digest": "0" * 64, "status": 403})
    rows = [empty.model_copy(update={"sequence": 100 + number}) for number in range(MOST_REFUSED)]
    body = bodies.join(parts["client-1"].declaration, "client-2")  # type: ignore[arg-type]
    sent = Sent(call="join", bytes=len(body), sha256=digest_of(body), status=403)
    changed(parts, "aggregator", arrivals=(*parts["aggregator"].arrivals, *rows))
    changed(parts, "client-1", sent=(sent,) * MOST_REFUSED)


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def not_held(parts: Parts) -> None:
    probe = Probe(
        kind="to another client", name="10.0.0.3:8801", expected="out of reach", observed="connected", held=False
    )
    changed(parts, "client-2", probes=(probe,))


@pytest.mark.parametrize(
    ("tamper", "name", "words"),
    [
        (altered, "chain", "client-1: entry 4"),
        (cut, "arrivals", "client-1, update of run-1 round 2, accepted: the ledger knows nothing of it"),
        (beside_the_ledger, "arrivals", "client-2, update of run-1 round 2, refused with 422"),
        (repeated, "arrivals", "client-2, update of run-1 round 2, accepted"),
        (without_its_row, "record", "client-2, update of run-1 round 2"),
        (other_declaration, "declaration", "client-1: another declaration"),
        (forgotten_at_the_aggregator, "receipts", "client-2, run-1 round 1: the aggregator holds nothing"),
        (lambda parts: parts.pop("client-2"), "evidence", "client-2: no evidence"),
        (not_held, "probes", "client-2, to another client, 10.0.0.3:8801: connected"),
        (many_refused, "refusals", "client-1: 1,000"),
    ],
)
def test_each_tampering_fails_exactly_its_finding(mine: Parts, tamper: Change, name: str, words: str) -> None:
    tamper(mine)
    made = of(mine)
    assert broken(made) == [name]
    assert words in told(made, name)
    assert not made.held and name in made.verdict and "Nothing undeclared" not in made.verdict


def test_a_record_that_has_another_body_than_the_ledger_fails_on_both_sides(mine: Parts) -> None:
    other_body_at_the_aggregator(mine)
    made = of(mine)
    assert broken(made) == ["receipts", "arrivals"]
    assert "client-1, run-1 round 1: the aggregator holds another body" in told(made, "receipts")


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
def test_a_ledger_that_tells_of_other_fields_fails_by_itself(
    mine: Parts, tmp_path: Path, change: Change, words: str
) -> None:
    rewritten(mine, "client-2", tmp_path, only("intent", change))
    made = of(mine)
    assert broken(made) == ["fields"]
    assert words in told(made, "fields") and "client-2, run-1 round 1" in told(made, "fields")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda entry: entry.update(receipt=None), "accepted without a receipt"),
        (lambda entry: entry["receipt"].update(digest="d" * 64), "a receipt for something else"),
        (lambda entry: entry["receipt"].update(client="client-2"), "a receipt for something else"),
    ],
)
def test_a_receipt_must_be_for_what_left(mine: Parts, tmp_path: Path, change: Change, words: str) -> None:
    rewritten(mine, "client-1", tmp_path, only("outcome", change))
    made = of(mine)
    assert broken(made) == ["receipts"] and words in told(made, "receipts")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (anchors(call="users"), "undeclared call 'users'"),
        (anchors(bytes=7), "a body of 7 bytes"),
        (anchors(to="http://elsewhere"), "calls to 2 places: 'http://aggregator:8800', 'http://elsewhere'"),
        (anchors(kind="note"), "neither an intent nor the outcome of one"),
    ],
)
def test_a_ledger_of_other_calls_fails_by_itself(mine: Parts, tmp_path: Path, change: Change, words: str) -> None:
    rewritten(mine, "client-1", tmp_path, change)
    made = of(mine)
    assert broken(made) == ["calls"] and words in told(made, "calls")


def test_a_second_outcome_of_one_call_is_none_of_it(mine: Parts, tmp_path: Path) -> None:
    rewritten(mine, "client-1", tmp_path, lambda entry: entry.update(of=1) if entry["kind"] == "outcome" else None)
    assert "entry 4 is neither an intent nor the outcome of one" in told(of(mine), "calls")


def test_many_faults_are_counted_and_all_kept(mine: Parts, tmp_path: Path) -> None:
    for name in ("client-1", "client-2"):
        rewritten(mine, name, tmp_path, anchors(call="users", bytes=7))
        rewritten(mine, name, tmp_path / "more", only("intent", lambda entry: entry["tensors"].clear()))
    [fields] = [one for one in of(mine).findings if one.name == "fields"]
    assert fields.found.endswith("; and 5 more") and len(fields.faults) == 8


def test_a_join_says_who_and_what_is_declared_and_perhaps_three_counts(mine: Parts, tmp_path: Path) -> None:
    counts = Counts(users=5, items=6, edges=7)
    declaration = mine["client-1"].declaration
    assert declaration is not None
    body = JoinIn(client="client-1", declaration=declaration, counts=counts).model_dump_json().encode()
    first = mine["aggregator"].arrivals[0].model_copy(update={"size": len(body), "digest": digest_of(body)})
    changed(mine, "aggregator", arrivals=(first, *mine["aggregator"].arrivals[1:]))

    def change(entry: dict[str, Any]) -> None:
        if entry.get("call") == "join":
            entry.update(bytes=len(body), sha256=digest_of(body))
            entry["join"]["counts"] = counts.model_dump()

    rewritten(mine, "client-1", tmp_path, change)
    made = of(mine)
    assert made.held and any("client-1 has told how many users" in note for note in made.notes)

    def hide(entry: dict[str, Any]) -> None:
        if entry.get("call") == "join":
            entry["join"]["counts"] = None

    rewritten(mine, "client-1", tmp_path / "hidden", hide)
    assert broken(of(mine)) == ["fields"] and "another body" in told(of(mine), "fields")


def test_what_was_tried_and_did_not_arrive_is_no_failure(mine: Parts, tmp_path: Path) -> None:
    entries = mine["client-1"].entries
    body = next(entry for entry in entries if entry.get("call") == UPDATE)
    ledger = Ledger(tmp_path / "more.jsonl")
    for entry in entries:
        ledger.append(entry["kind"], **{key: entry[key] for key in entry if key not in CHAINED})
    again = ledger.append("intent", **{key: body[key] for key in body if key not in CHAINED})
    ledger.append("outcome", of=again, error="ConnectError")
    ledger.append("intent", **{key: body[key] for key in body if key not in CHAINED})  # ended before the answer
    changed(mine, "client-1", entries=tuple(ledger.entries()))
    made = of(mine)
    assert made.held and "2 others did not arrive" in told(made, "record")


def late(arrival: ArrivalOut, **what: Any) -> ArrivalOut:
    """Refused before its body was read."""
    unread = {"size": 0, "digest": digest_of(b""), "status": 409, "code": "round-closed", "sequence": 99}
    return arrival.model_copy(update=unread | what)


def test_an_update_that_came_too_late_is_on_both_sides_though_its_body_was_not_read(
    mine: Parts, tmp_path: Path
) -> None:
    rows = mine["aggregator"].arrivals
    ledger = Ledger(tmp_path / "late.jsonl")
    for entry in mine["client-1"].entries:
        ledger.append(entry["kind"], **{key: entry[key] for key in entry if key not in CHAINED})
    update = next(entry for entry in mine["client-1"].entries if entry.get("call") == UPDATE)
    said = {key: update[key] for key in update if key not in CHAINED} | {"round": "1"}
    of_it = ledger.append("intent", **said)
    ledger.append("outcome", of=of_it, status=409, bytes=0, sha256=digest_of(b""), receipt=None)
    changed(mine, "client-1", entries=tuple(ledger.entries()))
    first = next(one for one in rows if one.call == UPDATE and one.client == "client-1")
    changed(mine, "aggregator", arrivals=(*rows, late(first)))
    made = of(mine)
    assert made.held and [(one.client, one.arrival.status) for one in made.refused] == [("client-1", 409)]
    changed(mine, "aggregator", arrivals=(*rows, late(first), late(first, sequence=100)))
    assert broken(of(mine)) == ["arrivals"]
    changed(mine, "aggregator", arrivals=(*rows, late(first, status=201, code=None)))
    assert broken(of(mine)) == ["arrivals"]


def probed(parts: Parts) -> tuple[ArrivalOut, Sent]:
    """A body of the probes, as it was sent and as it arrived."""
    declaration, first = parts["client-1"].declaration, parts["aggregator"].arrivals[1]
    assert declaration is not None
    body = bodies.malformed(declaration)["a NaN"]
    place = {"call": UPDATE, "run": "run-1", "round": 2}
    digest = digest_of(body)
    sent = Sent.model_validate({**place, "bytes": len(body), "sha256": digest, "status": 422})
    came = {**place, "client": "client-1", "sequence": 99, "size": len(body), "digest": digest, "status": 422}
    return first.model_copy(update=came | {"code": "protocol"}), sent


def test_what_the_probes_sent_is_accounted_for_once_and_only_where_it_was_refused(mine: Parts) -> None:
    arrival, sent = probed(mine)
    rows = mine["aggregator"].arrivals
    changed(mine, "aggregator", arrivals=(*rows, arrival))
    assert broken(of(mine)) == ["arrivals"]
    changed(mine, "client-1", sent=(sent,), probes=(held(),))
    made = of(mine)
    assert made.held and "6 bodies on the ledgers, 1 sent by the probes and refused" in told(made, "arrivals")
    changed(mine, "aggregator", arrivals=(*rows, arrival, arrival.model_copy(update={"sequence": 100})))
    assert broken(of(mine)) == ["arrivals"]
    changed(mine, "aggregator", arrivals=(*rows, arrival.model_copy(update={"status": 201})))
    assert broken(of(mine)) == ["arrivals"]


def held() -> Probe:
    return Probe(kind="past the gate", name="a NaN", expected="422 protocol", observed="422 protocol", held=True)


def test_a_body_that_only_claims_to_be_the_probes_is_found_out(mine: Parts) -> None:
    arrival, sent = probed(mine)
    leak = {"digest": "9" * 64}
    changed(mine, "aggregator", arrivals=(*mine["aggregator"].arrivals, arrival.model_copy(update=leak)))
    changed(mine, "client-1", sent=(sent.model_copy(update={"sha256": "9" * 64}),), probes=(held(),))
    made = of(mine)
    assert broken(made) == ["probes' bodies"] and "client-1, update, 999999999999" in told(made, "probes' bodies")


def test_probes_are_told_by_role_and_kind(mine: Parts) -> None:
    changed(mine, "client-1", probes=(held(), held()))
    changed(mine, "client-2", probes=(held(),))
    gateway = Evidence(name="gateway-1", role="gateway", taken_at="2026-01-01", probes=(held(),))
    made = of({**mine, "gateway-1": gateway})
    assert [(one.role, one.probes, one.held) for one in made.probes] == [("client", 3, 3), ("gateway", 1, 1)]
    assert made.held and told(made, "probes") == "4 probes by 3 parts, as expected"
    assert not any("no probe" in line for line in made.not_covered)


def test_without_the_aggregator_nothing_is_said_to_be_on_record(mine: Parts) -> None:
    mine.pop("aggregator")
    assert broken(of(mine)) == ["evidence", "declaration", "receipts", "arrivals", "record"]


def test_a_run_that_is_going_on_is_told(mine: Parts) -> None:
    [run] = mine["aggregator"].runs
    changed(mine, "aggregator", runs=(run.model_copy(update={"phase": "open"}),))
    assert any("run-1 was going on" in note for note in of(mine).notes)


def test_evidence_that_no_part_could_give_is_an_error_that_names_it(mine: Parts) -> None:
    with pytest.raises(DataError, match="several of client-1"):
        open_case((mine["client-1"], mine["client-1"]))
    with pytest.raises(DataError, match="client-1: expected a client's declaration"):
        open_case((mine["client-1"].model_copy(update={"declaration": None}),))
    for entry in ({"kind": "intent", "tensors": 5}, {"kind": "intent", "round": "x"}, {"kind": "outcome", "of": []}):
        with pytest.raises(DataError, match="client-1: expected ledger entries"):
            open_case((mine["client-1"].model_copy(update={"entries": (entry,)}),))


def test_as_many_refusals_are_taken_for_all_as_the_aggregator_records() -> None:
    assert MOST_REFUSED == RECORDED
