"""Ledgers against the aggregator's own record: what either knows, the other must know too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from audit.case import Case, Client
from audit.findings import Finding, finding
from audit.matching import Matched, Sending, from_ledger, from_probes, match, refused
from client_service.boundary.crossings import Attempt
from client_service.boundary.masked import MESSAGES
from shared.protocol.schemas import ArrivalOut, ParticipantOut
from shared.words import count_noun

MOST_REFUSED = 1000  # refusals of one client that an aggregator records; beyond them it only counts
NOT_AS_DECLARED = (413, 415, 422)  # too large, of another media type, of another form
UNTOLD = "the ledger knows nothing of it"
NO_RECORD = "no record of the aggregator to hold them against"
Matches = Mapping[str, Matched]


def matched(case: Case) -> Matches:
    """For each client: what arrived, paired with what its ledger and its probes say was sent."""
    arrivals = () if case.aggregator is None else case.aggregator.arrivals
    found = {}
    for name, client in case.clients.items():
        sendings = from_ledger(client.attempts) + from_probes(case.sent[name])
        found[name] = match([one for one in arrivals if one.client == name], sendings)
    return found


def declaration(case: Case) -> Finding:
    ours = None if case.aggregator is None else case.aggregator.declaration
    faults = [f"{name}: another declaration" for name, one in case.clients.items() if one.declaration != ours]
    return finding(
        "declaration",
        "every client declares exactly what the aggregator takes",
        "nothing" if ours is None else f"{len(ours.tensors)} tensors and {len(ours.scalars)} scalars at each of them",
        [NO_RECORD] if ours is None else faults,
    )


def receipts(case: Case) -> Finding:
    held = case.held
    total = sum(attempt.receipt is not None for client in case.clients.values() for attempt in client.attempts)
    faults = (f"{name}, {fault}" for name, client in case.clients.items() for fault in _receipts(name, client, held))
    return finding(
        "receipts",
        "every accepted update has a receipt for the body that left, and the aggregator holds the same",
        f"{count_noun(total, 'receipt')}, each the same on both sides",
        [NO_RECORD] if case.aggregator is None else faults,
    )


def _receipts(name: str, client: Client, held: Mapping[tuple[str, int, str], ParticipantOut]) -> Iterator[str]:
    for attempt in client.of("update"):
        where = f"{attempt.run} round {attempt.round}"
        if attempt.receipt is None:
            if attempt.status is not None and attempt.status < 300:
                yield f"{where}: accepted without a receipt"
            continue
        if not _same_receipt(name, attempt):
            yield f"{where}: a receipt for something else than what left"
        there = held.get((str(attempt.run), attempt.round or 0, name))
        if there is None:
            yield f"{where}: the aggregator holds nothing"
        elif (there.digest, there.size) != (attempt.sha256, attempt.bytes):
            yield f"{where}: the aggregator holds another body"


def _same_receipt(name: str, attempt: Attempt) -> bool:
    said = attempt.receipt or {}
    left = {"client": name, "run": attempt.run, "round": attempt.round, "digest": attempt.sha256, "size": attempt.bytes}
    return {field: said.get(field) for field in left} == left


def on_ledger(case: Case, matches: Matches) -> Finding:
    """Whatever has reached the aggregator has passed the gate, or the probes say that they sent it."""
    refusals = sum(len(one.refused("probes")) for one in matches.values())
    arrived = sum(len(one.pairs) for one in matches.values()) - refusals
    return finding(
        "arrivals",
        "a ledger or a probe tells of every body that arrived",
        f"{count_noun(arrived, 'body', 'bodies')} on the ledgers, {refusals:,} sent by the probes and refused",
        [NO_RECORD] if case.aggregator is None else _untold(case, matches),
    )


def _untold(case: Case, matches: Matches) -> list[str]:
    """What arrived, and what is held, that no ledger tells of; the same body is not told twice for both."""
    outside = Counter(f"{name}, {_told(one)}" for name, found in matches.items() for one in found.outside)
    unheard = Counter(f"{one.client}, {_told(one)}" for one in _unheard(case))
    times = outside | Counter(set(_unknown(case))) | unheard
    return [f"{what}{f', {count} times' if count > 1 else ''}: {UNTOLD}" for what, count in times.items()]


def _unheard(case: Case) -> Iterator[ArrivalOut]:
    """What came from clients that have given no evidence."""
    arrivals = () if case.aggregator is None else case.aggregator.arrivals
    return (one for one in arrivals if one.client not in case.clients)


def _unknown(case: Case) -> Iterator[str]:
    """Updates that the aggregator holds. Whoever cuts off a ledger's end does not reach these."""
    left = {
        name: {(one.run, one.round, one.sha256, one.bytes) for one in client.of("update")}
        for name, client in case.clients.items()
    }
    for (run, number, name), held in case.held.items():
        if name in left and (run, number, held.digest, held.size) not in left[name]:
            yield f"{name}, update of {run} round {number}, accepted"


def _told(arrival: ArrivalOut) -> str:
    met = f"refused with {arrival.status}" if refused(arrival) else "accepted"
    return f"{_place(arrival)}, {met}"


def _place(one: ArrivalOut | Sending) -> str:
    return one.call if one.run is None else f"{one.call} of {one.run} round {one.round}"


def nonces(matches: Matches) -> Finding:
    """A ledger that was written anew, however well, has other entries than those by which its requests were signed."""
    pairs = {name: [pair for pair in found.pairs if _tells_nonces(*pair)] for name, found in matches.items()}
    return finding(
        "entries",
        "every body that arrived was signed by the nonce that its entry in the ledger makes",
        f"{count_noun(sum(map(len, pairs.values())), 'body', 'bodies')} signed by their entries",
        (
            f"{name}, {_told(arrival)}: signed by another entry than the ledger has"
            for name, found in pairs.items()
            for arrival, sending in found
            if arrival.nonce != sending.nonce
        ),
    )


def _tells_nonces(arrival: ArrivalOut, sending: Sending) -> bool:
    return sending.source == "ledger" and arrival.nonce is not None and sending.nonce is not None


def arrived(case: Case, matches: Matches) -> Finding:
    lost = sum(len(found.lost) for found in matches.values())
    faults = [
        f"{name}, {_place(one)}: accepted by the ledger's account, and the aggregator has no record of it"
        for name, found in matches.items()
        for one in found.unseen
    ]
    return finding(
        "record",
        "the aggregator's record has every body that a ledger calls accepted",
        "all of them" + (f"; {count_noun(lost, 'other')} did not arrive" if lost else ""),
        [NO_RECORD] if case.aggregator is None else faults,
    )


def undeclared(matches: Matches) -> Finding:
    """A gate lets no such body out: whatever the ledger says was in it, the aggregator found something else."""
    found = {name: [one for one in of.refused("ledger") if _not_as_declared(one)] for name, of in matches.items()}
    return finding(
        "as declared",
        "no update that a ledger tells of was refused for not being as declared",
        "none was",
        (f"{name}, {_told(one)}" for name, arrivals in found.items() for one in arrivals),
    )


def _not_as_declared(one: ArrivalOut) -> bool:
    return one.call in ("update", *MESSAGES) and one.status in NOT_AS_DECLARED


def refusals(case: Case) -> Finding:
    arrivals = () if case.aggregator is None else case.aggregator.arrivals
    counts = Counter(one.client for one in arrivals if refused(one))
    most = max(counts.values(), default=0)
    return finding(
        "refusals",
        f"fewer than {MOST_REFUSED:,} refusals of each client, so that all are on record",
        f"at most {most:,} of one client",
        (
            f"{name}: {count:,}, and perhaps more that are not"
            for name, count in counts.items()
            if count >= MOST_REFUSED
        ),
    )
