"""The report on evidence as it should be, and on evidence that was tampered with: exactly one finding fails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from aggregator_service.storage.arrivals import MOST_REFUSED as RECORDED
from audit.checks.records import MOST_REFUSED
from audit.evidence.case import open_case
from audit.evidence.evidence import PartEvidence, ProbeResult, ProbeSending
from audit.probes import bodies
from audit.report import PrivacyReport, _summed_statistics
from shared.errors import DataError
from shared.method.declaration import Declaration, TensorSpec
from shared.protocol.schemas import ArrivalOut

if TYPE_CHECKING:
    from conftest import Tampered

UPDATE = "update"


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def arrivals(mine: Tampered) -> tuple[ArrivalOut, ...]:
    return mine.parts["aggregator"].arrivals


def declaration(mine: Tampered) -> Declaration:
    found = mine.parts["client-1"].declaration
    assert found is not None
    return found


def found(made: PrivacyReport, name: str) -> str:
    return next(one.found for one in made.findings if one.name == name)


def test_what_is_as_it_should_be_holds_and_is_told_in_one_sentence(mine: Tampered) -> None:
    made, size = mine.report(), sum(one.size for one in arrivals(mine))
    assert mine.broken() == {} and made.held
    assert made.verdict == (
        "Nothing undeclared crossed, and all that crossed is on record:"
        f" 6 bodies, {size:,} bytes, from 2 clients in 2 rounds."
    )
    assert any("nonces of questions" in line for line in made.not_covered) and any(
        "no probe" in line for line in made.not_covered
    )


def test_it_shows_what_left_and_what_came_in(mine: Tampered) -> None:
    made = mine.report()
    counts = {(one.client, one.call): (one.calls, one.bytes_down) for one in made.totals}
    assert counts["client-1", "anchor"] == (2, 2 * len(b"something"))
    assert counts["client-2", UPDATE][0] == 2 and counts["client-2", "join"][0] == 1
    [last] = [one for one in made.rounds if (one.client, one.round) == ("client-2", 2)]
    update = next(one for one in made.crossings["client-2"] if one["call"] == UPDATE and one["round"] == 2)
    assert (last.tensors, last.scalars, last.sha256, last.receipt) == (2, 2, update["sha256"], True)
    assert [tensor["shape"] for tensor in update["tensors"]] == [[2, 3], [1]] and update["scalars"]["margin"] == 2.2
    assert len(update["tensors"][0]["sha256"]) == len(update["answer_sha256"]) == 64
    assert PrivacyReport.model_validate_json(made.model_dump_json()) == made


def altered(mine: Tampered) -> None:
    entries = [dict(entry) for entry in mine.parts["client-1"].entries]
    entries[3]["time"] = "2020-01-01T00:00:00.000+00:00"
    mine.change("client-1", entries=tuple(entries))


def cut(mine: Tampered) -> None:
    """The last update's intent and all after it are gone; what is left is a chain."""
    entries = mine.parts["client-1"].entries
    last = max(place for place, entry in enumerate(entries) if entry.get("call") == UPDATE)
    mine.change("client-1", entries=entries[:last])


def without_its_row(mine: Tampered) -> None:
    rows = arrivals(mine)
    gone = max(place for place, one in enumerate(rows) if one.call == UPDATE)
    mine.change("aggregator", arrivals=rows[:gone] + rows[gone + 1 :])


def beside_the_ledger(mine: Tampered) -> None:
    other = {"sequence": 99, "digest": "f" * 64, "status": 422, "code": "protocol"}
    mine.change("aggregator", arrivals=(*arrivals(mine), arrivals(mine)[-1].model_copy(update=other)))


def repeated(mine: Tampered) -> None:
    """The same body once more than the ledger tells."""
    again = arrivals(mine)[-1].model_copy(update={"sequence": 99})
    mine.change("aggregator", arrivals=(*arrivals(mine), again))


def other_declaration(mine: Tampered) -> None:
    mine.change("aggregator", declaration=declaration(mine).model_copy(update={"scalars": ("margin", "recall", "rho")}))


def held_in_round_one(mine: Tampered, change: Callable[[Any], Any]) -> None:
    """What the aggregator's history says of round 1."""
    [run] = mine.parts["aggregator"].runs
    first = run.rounds[0].model_copy(update={"participants": change(run.rounds[0].participants)})
    mine.change("aggregator", runs=(run.model_copy(update={"rounds": (first, *run.rounds[1:])}),))


def forgotten(mine: Tampered) -> None:
    held_in_round_one(mine, lambda held: held[:1])


def without_client_2(mine: Tampered) -> None:
    mine.parts.pop("client-2")


def many_refused(mine: Tampered) -> None:
    """As many as an aggregator records, all of them on the probes' account."""
    unread = {"size": 0, "digest": digest_of(b""), "status": 403}
    rows = [arrivals(mine)[0].model_copy(update=unread | {"sequence": 100 + more}) for more in range(MOST_REFUSED)]
    body = bodies.join_body(declaration(mine), "client-2")
    sent = ProbeSending(call="join", bytes=len(body), sha256=digest_of(body), status=403)
    mine.change("aggregator", arrivals=(*arrivals(mine), *rows))
    mine.change("client-1", sent=(sent,) * MOST_REFUSED)


def reaching_another(mine: Tampered) -> None:
    said = {"kind": "to another client", "name": "10.0.0.3:8801", "expected": "out of reach", "observed": "connected"}
    mine.change("client-2", probes=(ProbeResult.model_validate(said | {"held": False}),))


@pytest.mark.parametrize(
    ("tamper", "name", "words"),
    [
        (altered, "chain", "client-1: entry 4"),
        (cut, "arrivals", "client-1, update of run-1 round 2, accepted: not on the ledger"),
        (beside_the_ledger, "arrivals", "client-2, update of run-1 round 2, refused with 422"),
        (repeated, "arrivals", "client-2, update of run-1 round 2, accepted"),
        (without_its_row, "record", "client-2, update of run-1 round 2"),
        (other_declaration, "declaration", "client-1: another declaration"),
        (forgotten, "receipts", "client-2, run-1 round 1: the aggregator holds nothing"),
        (reaching_another, "probes", "client-2, to another client, 10.0.0.3:8801: connected"),
        (many_refused, "refusals", "client-1: 1,000"),
    ],
)
def test_each_tampering_fails_exactly_its_finding(
    mine: Tampered, tamper: Callable[[Tampered], None], name: str, words: str
) -> None:
    tamper(mine)
    made = mine.report()
    assert list(mine.broken()) == [name] and words in mine.broken()[name]
    assert not made.held and name in made.verdict and "Nothing undeclared" not in made.verdict


def test_a_client_without_evidence_is_named_and_so_is_all_that_came_from_it(mine: Tampered) -> None:
    without_client_2(mine)
    assert list(mine.broken()) == ["evidence", "arrivals"]
    assert "client-2: no evidence" in mine.broken()["evidence"]
    assert "client-2, update of run-1 round 1, accepted" in mine.broken()["arrivals"]


def test_a_record_that_has_another_body_than_the_ledger_fails_on_both_sides(mine: Tampered) -> None:
    held_in_round_one(mine, lambda held: tuple(one.model_copy(update={"size": one.size + 1}) for one in held))
    assert list(mine.broken()) == ["receipts", "arrivals"]
    assert "client-1, run-1 round 1: the aggregator holds another body" in mine.broken()["receipts"]


def test_without_the_aggregator_nothing_is_said_to_be_on_record(mine: Tampered) -> None:
    mine.parts.pop("aggregator")
    assert list(mine.broken()) == ["evidence", "declaration", "receipts", "arrivals", "record"]


def test_a_run_that_is_going_on_is_told(mine: Tampered) -> None:
    [run] = mine.parts["aggregator"].runs
    mine.change("aggregator", runs=(run.model_copy(update={"phase": "open"}),))
    assert any("run-1 was in progress" in note for note in mine.report().notes)


def probed(mine: Tampered) -> tuple[ArrivalOut, ProbeSending]:
    """A body of the probes, as it arrived and as it was sent."""
    body = bodies.malformed_updates(declaration(mine))["a NaN"]
    place: dict[str, Any] = {"call": UPDATE, "run": "run-1", "round": 2}
    sent = ProbeSending.model_validate({**place, "bytes": len(body), "sha256": digest_of(body), "status": 422})
    came = {**place, "client": "client-1", "sequence": 99, "size": len(body), "digest": digest_of(body), "status": 422}
    return arrivals(mine)[1].model_copy(update=came), sent


HELD = ProbeResult(kind="past the gate", name="a NaN", expected="422 protocol", observed="422 protocol", held=True)


def test_what_the_probes_sent_is_accounted_for_once_and_only_where_it_was_refused(mine: Tampered) -> None:
    (arrival, sent), rows = probed(mine), arrivals(mine)
    mine.change("aggregator", arrivals=(*rows, arrival))
    assert list(mine.broken()) == ["arrivals"]
    mine.change("client-1", sent=(sent,), probes=(HELD,))
    assert mine.broken() == {}
    assert found(mine.report(), "arrivals") == "6 bodies on the ledgers, 1 sent by the probes and refused"
    mine.change("aggregator", arrivals=(*rows, arrival, arrival.model_copy(update={"sequence": 100})))
    assert list(mine.broken()) == ["arrivals"]
    mine.change("aggregator", arrivals=(*rows, arrival.model_copy(update={"status": 201})))
    assert list(mine.broken()) == ["arrivals"]


def test_a_body_that_only_claims_to_be_the_probes_is_found_out(mine: Tampered) -> None:
    arrival, sent = probed(mine)
    leak = arrival.model_copy(update={"digest": "9" * 64})
    mine.change("aggregator", arrivals=(*arrivals(mine), leak))
    mine.change("client-1", sent=(sent.model_copy(update={"sha256": "9" * 64}),), probes=(HELD,))
    assert list(mine.broken()) == ["probes' bodies"]
    assert "client-1, update, 999999999999" in mine.broken()["probes' bodies"]


@pytest.mark.parametrize("status", [413, 415, 422])
def test_a_ledger_cannot_call_declared_what_was_refused_for_not_being_so(mine: Tampered, status: int) -> None:
    """The ledger tells of the very body that came, with invented fields; what was in it, only the aggregator saw."""
    last = max(place for place, one in enumerate(arrivals(mine)) if (one.client, one.call) == ("client-1", UPDATE))
    rows = list(arrivals(mine))
    rows.insert(last, rows[last].model_copy(update={"status": status, "code": "protocol"}))
    mine.change("aggregator", arrivals=tuple(rows))
    entries = mine.parts["client-1"].entries
    mine.change("client-1", entries=rechained(entries, twice=rows[last].digest, status=status))
    assert list(mine.broken()) == ["as declared"]


def rechained(entries: Any, *, twice: str, status: int) -> tuple[dict[str, Any], ...]:
    """The ledger with one attempt more, of the same body and refused, in a chain that holds."""
    place = next(number for number, entry in enumerate(entries) if entry.get("sha256") == twice)
    intent, outcome = dict(entries[place]), {"kind": "outcome", "status": status, "bytes": 0, "sha256": digest_of(b"")}
    told, previous = [], "0" * 64
    moved = {number: number if number <= place else number + 2 for number in range(1, len(entries) + 1)}
    for sequence, entry in enumerate((*entries[:place], intent, outcome, *entries[place:]), start=1):
        of = sequence - 1 if entry is outcome else moved.get(entry.get("of"), 0)
        fresh = {**entry, "sequence": sequence, "time": entries[place]["time"], "previous": previous}
        fresh |= {"of": of} if entry["kind"] == "outcome" else {}
        fresh.pop("hash", None)
        previous = fresh["hash"] = hashlib.sha256(
            json.dumps(fresh, sort_keys=True, separators=(",", ":")).encode()
        ).hexdigest()
        told.append(fresh)
    return tuple(told)


def test_a_probe_cannot_be_longer_than_it_is(mine: Tampered) -> None:
    _, sent = probed(mine)
    mine.change("client-1", sent=(sent.model_copy(update={"bytes": 10**9}),), probes=(HELD,))
    assert "probes' bodies" in mine.broken()


def test_probes_are_told_by_role_and_kind(mine: Tampered) -> None:
    mine.change("client-1", probes=(HELD, HELD))
    mine.change("client-2", probes=(HELD,))
    mine.parts["gateway-1"] = PartEvidence(name="gateway-1", role="gateway", taken_at="2026-01-01", probes=(HELD,))
    made = mine.report()
    assert [(one.role, one.probes, one.held) for one in made.probes] == [("client", 3, 3), ("gateway", 1, 1)]
    assert made.held and found(made, "probes") == "4 probes by 3 parts, as expected"
    assert any("no probe of aggregator is part" in line for line in made.not_covered)
    mine.change("aggregator", probes=(HELD,))
    assert not any("no probe" in line for line in mine.report().not_covered)


def test_evidence_that_no_part_could_give_is_an_error_that_names_it(mine: Tampered) -> None:
    client = mine.parts["client-1"]
    with pytest.raises(DataError, match="several of client-1"):
        open_case((client, client))
    with pytest.raises(DataError, match="client-1: expected a client's declaration"):
        open_case((client.model_copy(update={"declaration": None}),))
    for entry in ({"kind": "intent", "tensors": 5}, {"kind": "intent", "round": "x"}, {"kind": "outcome", "of": []}):
        with pytest.raises(DataError, match="client-1: expected ledger entries"):
            open_case((client.model_copy(update={"entries": (entry,)}),))


def test_as_many_refusals_are_taken_for_all_as_the_aggregator_records() -> None:
    assert MOST_REFUSED == RECORDED


@pytest.mark.parametrize(
    ("strategy", "words"),
    [
        ("common_basis", "statistics of its items, in the open (basis.n: 160 bytes in 1 update) for the common basis"),
        ("another", "statistics, in the open (basis.n: 160 bytes in 1 update) for the sum 'another'"),
    ],
)
def test_sums_of_another_version_are_told_too(strategy: str, words: str) -> None:
    sums = Declaration(strategy=strategy, tensors=(TensorSpec(name="basis.n", dtype="U32", shape=(40,)),), scalars=())
    declared = Declaration(strategy="lpsfed", tensors=(), scalars=(), basis=sums)
    sent = SimpleNamespace(tensor_names={"basis.n"}, bytes=160)
    client: Any = SimpleNamespace(declaration=declared, attempts_of=lambda call: [sent] if call == "update" else [])
    assert list(_summed_statistics(client)) == [words]
