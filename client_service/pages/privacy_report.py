"""Privacy report of the page: updates that left the silo, and answers that came."""

from __future__ import annotations

from dataclasses import dataclass

from client_service.boundary.call_attempts import Attempt
from client_service.pages.ledger_view import CallTally, SentUpdate, Summary, describe_update
from shared.method.declaration import Declaration
from shared.web.pages import DeclaredFields, Verdict, describe_declaration
from shared.words import DASH, count_noun

SHOWN, EARLIER = 6, 24  # updates that are listed, and those folded away beneath them
CALLS = {
    "join": "register name and declaration",
    "current": "ask for the state of the current run",
    "changes": "hold a stream of changes of the current run",
    "model": "fetch a run’s first parameters",
    "anchor": "fetch the anchor’s kernel",
    "update": "send an update",
    "personalized": "fetch a round’s parameters",
    "keys": "secure round: send public keys",
    "roster": "secure round: fetch all public keys",
    "shares": "secure round: send encrypted shares of its secrets",
    "delivery": "secure round: fetch the other silos’ encrypted shares",
    "request": "secure round: ask for the list of silos in the sum",
    "checks": "secure round: report which shares could be decrypted",
    "sharers": "secure round: fetch the pairs that mask together",
    "consents": "secure round: sign the list of silos in the sum",
    "signatures": "secure round: fetch the others’ signatures",
    "answers": "secure round: send the shares that open the sum",
}
BRINGING = ("model", "anchor", "personalized")  # parameters or a kernel


@dataclass(frozen=True)
class Received:
    """One answer that brought parameters or a kernel."""

    time: str
    call: str
    where: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class CallRow:
    call: str
    purpose: str
    total: CallTally


@dataclass(frozen=True)
class UpdatesReport:
    """Report of sent updates, received answers and calls, newest first.

    earlier: older updates, which the page folds away.
    """

    verdicts: tuple[Verdict, ...]
    declared: DeclaredFields
    counts: str
    updates: tuple[SentUpdate, ...]
    earlier: tuple[SentUpdate, ...]
    received: tuple[Received, ...]
    calls: tuple[CallRow, ...]

    @property
    def alarms(self) -> tuple[Verdict, ...]:
        """Findings that need the operator's attention."""
        return tuple(one for one in self.verdicts if one.kind == "bad")


def build_report(summary: Summary, declaration: Declaration, *, counts: bool) -> UpdatesReport:
    """Builds the report.

    counts: whether the policy lets the numbers of users, items and edges leave.
    """
    newest = summary.latest[::-1]
    updates = [describe_update(one, declaration) for one in newest if one.call == "update"][: SHOWN + EARLIER]
    received = [_received_update(one) for one in newest if one.call in BRINGING and one.answer_bytes][:SHOWN]
    return UpdatesReport(
        verdicts=(_content(summary), _chain(summary), _answers(summary)),
        declared=describe_declaration(declaration),
        counts="are sent when it joins, as the silo’s policy allows" if counts else "are never sent",
        updates=tuple(updates[:SHOWN]),
        earlier=tuple(updates[SHOWN:]),
        received=tuple(received),
        calls=tuple(CallRow(one.call, CALLS.get(one.call, DASH), one) for one in summary.totals),
    )


def _content(summary: Summary) -> Verdict:
    other, calls = sum(one.other for one in summary.totals), sum(one.count for one in summary.totals)
    if other:
        text = f"{count_noun(other, 'call')} of {calls:,} had fields that are not declared today."
        return Verdict(
            "bad", "Undeclared fields sent", f"{text} Stop this client and compare the ledger with the declaration."
        )
    updates = sum(one.count for one in summary.totals if one.call == "update")
    if not updates:
        return Verdict("idle", "Nothing sent", "No update has left this silo.")
    text = f"{count_noun(updates, 'update')} sent, each with the declared fields and nothing else."
    return Verdict("good", "Only declared values left", text)


def _chain(summary: Summary) -> Verdict:
    if summary.broken is not None:
        text = f"The hash chain breaks at line {summary.broken}: that line, or one before it, was changed."
        return Verdict(
            "bad", "Ledger damaged", f"{text} Figures end before it. Stop the client and run lpsfed ledger verify."
        )
    if summary.read < summary.written:
        text = f"{summary.read:,} of {summary.written:,} entries are checked so far; none was changed."
        return Verdict("busy", "Ledger being checked", text)
    text = f"{count_noun(summary.written, 'entry', 'entries')}; the hash chain shows that none was changed."
    return Verdict("good", "Ledger intact", text)


ALWAYS_LATE = 10  # late shares, without one in time, from which on the page warns


def _answers(summary: Summary) -> Verdict:
    refused, lost = sum(one.refused for one in summary.totals), sum(one.unanswered for one in summary.totals)
    late = sum(one.late for one in summary.totals)
    open_calls = f" {count_noun(lost, 'call')} without an answer so far." if lost else ""
    if refused:
        words = "the tab All calls shows which, the client’s log why."
        return Verdict(
            "warn", "Calls refused", f"The aggregator refused {count_noun(refused, 'call')}: {words}{open_calls}"
        )
    came = f" By its answers {count_noun(late, 'share')} of a secure sum came after enough others." if late else ""
    # A slow silo is late often. An aggregator that refuses its shares on purpose says the same, each time.
    if late >= ALWAYS_LATE and late == sum(one.count for one in summary.totals if one.late):
        words = "no share of this silo was needed so far. If its network is not slow, ask the aggregator’s operator."
        return Verdict("warn", "Shares always late", f"{came.strip()} That is each of them: {words}{open_calls}")
    return Verdict("good", "Calls accepted", f"The aggregator refused none.{came}{open_calls}")


def _received_update(one: Attempt) -> Received:
    where = ", ".join(filter(None, (one.run, None if one.round is None else f"round {one.round}")))
    return Received(one.time, one.call, where, one.answer_bytes, one.answer_sha256)
