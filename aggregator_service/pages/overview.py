"""First screen of the operator's page: state of the federation, figures, and the next step."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile

from shared.method.declaration import TRAINING
from shared.protocol.gate import warn_of_few_clients
from shared.protocol.schemas import ENDED, RoundOut, RunHistoryOut
from shared.sums import describe_part
from shared.web.pages import Fact, Verdict
from shared.words import DASH, count_noun, format_bytes, format_duration, format_time

GAIN = "Each client compares the new model with its own: its page shows what joining brought, which is not sent here."
NAMED = 6  # names that one sentence holds


@dataclass(frozen=True)
class FederationOverview:
    """State of the federation: a verdict, progress, warnings and figures.

    advice: what the operator can do now. `done` of `rounds` rounds are aggregated. start: command that starts a run,
    where none is active.
    """

    verdict: Verdict
    advice: str
    done: int
    rounds: int
    warnings: tuple[str, ...]
    facts: tuple[Fact, ...]
    start: str | None


def build_overview(
    run: RunHistoryOut | None, joined: Sequence[str], *, url: str, runs: Sequence[RunHistoryOut] = ()
) -> FederationOverview:
    """Builds the first screen of the operator's page.

    url: address of this aggregator. runs: all runs, oldest first.
    """
    if run is None:
        return FederationOverview(
            _idle_verdict(joined), _advise(run), 0, 0, (), (_members_fact(joined),), _start_command(url, len(joined))
        )
    done = sum(one.phase == "aggregated" for one in run.rounds)
    return FederationOverview(
        verdict=_verdict(run, joined),
        advice=_advise(run),
        done=done,
        rounds=run.request.rounds,
        warnings=warn_of_few_clients(len(joined)),
        facts=(
            *_sum_facts(run),
            *_earlier_sums(run, runs),
            *_round_facts(run),
            _received_fact(run),
            _pace_fact(run),
            _members_fact(joined),
        ),
        start=_start_command(url, len(joined)) if run.phase in ENDED else None,
    )


def join_names(names: Sequence[str]) -> str:
    """Joins names into a phrase, with a count of those left out."""
    if not names:
        return "none"
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def awaited_clients(one: RoundOut) -> str:
    """Describes which clients an open round waits for, and its secure step."""
    if one.secure is None:
        return f"waiting for {join_names(one.missing)}"
    return f"step {one.secure.step}, waiting for {join_names(one.secure.waiting_for)}"


def round_seconds(one: RoundOut) -> float | None:
    """Returns the seconds from a round's opening to its closing; None while it is open."""
    if one.closed_at is None:
        return None
    return (datetime.fromisoformat(one.closed_at) - datetime.fromisoformat(one.opened_at)).total_seconds()


def _idle_verdict(joined: Sequence[str]) -> Verdict:
    if not joined:
        return Verdict("idle", "No client has joined", "A client joins by itself when it starts with this address.")
    return Verdict("idle", "No run yet", f"{join_names(joined)} {'has' if len(joined) == 1 else 'have'} joined.")


def _verdict(run: RunHistoryOut, joined: Sequence[str]) -> Verdict:
    part = run.request.part
    what = run.run if part == TRAINING else f"{run.run} ({describe_part(part, run.request.method.basis.kind)})"
    if run.phase == "waiting":
        there = f"{len(joined)} of {count_noun(run.request.clients, 'client')} have joined"
        return Verdict(
            "busy",
            "Waiting for clients",
            f"{there}; {what} fails at {format_time(run.deadline_at)} if one is still missing.",
        )
    if run.phase == "finished":
        return Verdict("good", "Finished", f"{what} is over after {count_noun(len(run.rounds), 'round')}.")
    if run.phase == "cancelled":
        done = sum(one.phase == "aggregated" for one in run.rounds)
        after = f"after {done:,} of {count_noun(run.request.rounds, 'round')}"
        return Verdict("idle", "Cancelled", f"{what}, by the operator, {after}.")
    if run.phase == "failed":
        return Verdict("bad", "Failed", f"{what}: {run.reason}.")
    now = run.rounds[-1]
    where = f"{what}, round {now.number} of {run.request.rounds}"
    if run.phase == "aggregated":
        return Verdict("busy", "Aggregating", f"{where}: all updates have arrived.")
    return Verdict("busy", "Round open", f"{where}; {awaited_clients(now)}, until {format_time(run.deadline_at)}.")


def _advise(run: RunHistoryOut | None) -> str:
    """Returns the next step of the operator, and where the gain of joining is shown."""
    if run is None or run.phase == "cancelled":
        return "Next: start a run as soon as the clients have joined."
    if run.phase == "waiting":
        return "Next: start the clients that have not joined, or cancel the run."
    if run.phase in ("open", "aggregated"):
        return "Nothing to do: each round closes once its updates have arrived, or at its deadline."
    if run.phase == "failed":
        return "Next: remove the cause, then start a new run. Clients keep serving their last model."
    if run.request.part != TRAINING:
        return "Each client now uses the sums. Next: start the run that the form below proposes."
    return f"{GAIN} Next: start another run when the clients have new data."


def _round_facts(run: RunHistoryOut) -> tuple[Fact, ...]:
    if not run.rounds:
        return (Fact("Updates", DASH, "no round has opened"),)
    now = run.rounds[-1]
    came, expected = len(now.participants) - len(now.missing), len(now.participants)
    least = run.request.quorum or run.request.clients
    note = f"received in round {now.number}; {least:,} needed at its deadline"
    return Fact("Updates", f"{came} of {expected}", note), Fact(
        "Not yet received" if now.phase == "open" else "Missing", f"{len(now.missing)}", join_names(now.missing)
    )


def _sum_facts(run: RunHistoryOut) -> tuple[Fact, ...]:
    """Describes the sum of a run that makes one, and the reason for it."""
    return () if run.sum is None else (Fact("Sum", run.sum.kind, run.sum.reason or "made by an earlier version"),)


def _earlier_sums(run: RunHistoryOut, runs: Sequence[RunHistoryOut]) -> tuple[Fact, ...]:
    """Lists the newest earlier run of each other sum, with its outcome."""
    before = takewhile(lambda one: one.run != run.run, runs)
    newest = {one.request.part: one for one in before if one.sum is not None and one.request.part != run.request.part}
    return tuple(_describe_sum_run(one) for one in newest.values() if one.phase in ENDED)


def _describe_sum_run(run: RunHistoryOut) -> Fact:
    title = describe_part(run.request.part, run.request.method.basis.kind)
    return Fact(
        title[0].upper() + title[1:],
        "made" if run.phase == "finished" else "not made",
        run.reason or f"by {run.run}",
    )


def _received_fact(run: RunHistoryOut) -> Fact:
    sizes = [one.size for each in run.rounds for one in each.participants if one.received]
    return Fact("Received", format_bytes(sum(sizes)), f"{count_noun(len(sizes), 'update')} in {run.run}")


def _pace_fact(run: RunHistoryOut) -> Fact:
    known = [found for one in run.rounds if (found := round_seconds(one)) is not None]
    return Fact(
        "Round time", format_duration(statistics.median(known) if known else None), "median, from opening to closing"
    )


def _members_fact(joined: Sequence[str]) -> Fact:
    return Fact("Clients", f"{len(joined):,}", "have joined this federation")


def _start_command(url: str, clients: int) -> str:
    """Returns the shell command that starts a run with all joined clients."""
    token, kind = '-H "Authorization: Bearer $(cat operator.token)"', "-H 'Content-Type: application/json'"
    return f'curl -X POST {url}v1/runs {token} {kind} -d \'{{"clients": {max(clients, 2)}, "rounds": 10}}\''
