"""A run's history and the record of arrivals -> rows, newest first, and the curves over a run's rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from aggregator_service.pages.standing import awaited_clients, length, names
from aggregator_service.storage.arrivals import LEAST_REFUSED
from shared.protocol.schemas import ArrivalOut, ArrivalsOut, ParticipantOut, RoundOut, RunHistoryOut
from shared.web.charts import Chart, Line
from shared.web.pages import Verdict, clock, seconds
from shared.words import count_noun

SHOWN_ROUNDS, SHOWN_CLIENTS, SHOWN_LINES = 10, 100, 10


@dataclass(frozen=True)
class RoundView:
    """One round. `more`: how many of its clients are not among `participants`."""

    key: str
    number: int
    state: Verdict
    opened_at: str
    time: str
    came: str
    bytes: int
    participants: tuple[ParticipantOut, ...]
    more: int


@dataclass(frozen=True)
class ClientView:
    """One client over all rounds of a run."""

    client: str
    updates: int
    missed: int
    bytes: int
    last: ParticipantOut | None


def rounds(run: RunHistoryOut) -> tuple[RoundView, ...]:
    """The newest rounds, newest first."""
    return tuple(_round(run, one) for one in run.rounds[-SHOWN_ROUNDS:][::-1])


def _round(run: RunHistoryOut, one: RoundOut) -> RoundView:
    came, expected = len(one.participants) - len(one.missing), len(one.participants)
    return RoundView(
        key=f"{run.run}-round-{one.number}",
        number=one.number,
        state=_state(run, one),
        opened_at=one.opened_at,
        time="not closed" if one.closed_at is None else seconds(length(one)),
        came=f"{came} of {count_noun(expected, 'update')}",
        bytes=sum(participant.size for participant in one.participants),
        participants=one.participants[:SHOWN_CLIENTS],
        more=max(0, expected - SHOWN_CLIENTS),
    )


def _state(run: RunHistoryOut, one: RoundOut) -> Verdict:
    if one.phase == "open":
        return Verdict("busy", "open", f"{awaited_clients(one)}, until {clock(run.deadline_at)}")
    if one.phase == "failed":
        return Verdict("bad", "failed", f"missing: {names(one.missing)}")
    if away := [participant.client for participant in one.participants if not participant.received]:
        return Verdict("warn", "aggregated", f"without {names(away)}")
    return Verdict("good", "aggregated", "with everybody")


def clients(run: RunHistoryOut) -> tuple[ClientView, ...]:
    """Every client of the run by name, as many as a page holds."""
    found: dict[str, list[ParticipantOut]] = {}
    for one in run.rounds:
        for participant in one.participants:
            found.setdefault(participant.client, []).append(participant)
    return tuple(_client(name, found[name]) for name in sorted(found)[:SHOWN_CLIENTS])


def _client(name: str, parts: list[ParticipantOut]) -> ClientView:
    sent = [one for one in parts if one.received]
    total = sum(one.size for one in sent)
    return ClientView(name, len(sent), len(parts) - len(sent), total, sent[-1] if sent else None)


def curves(run: RunHistoryOut) -> tuple[Chart, ...]:
    """rho and rhobar of each client where the strategy sends rho; how many updates came, and how long it took."""
    spectral = any(one.rho is not None for each in run.rounds for one in each.participants)
    return (*(_spectral_charts(run) if spectral else ()), _arrivals_chart(run), _time(run))


def _spectral_charts(run: RunHistoryOut) -> tuple[Chart, Chart]:
    everybody = sorted({one.client for each in run.rounds for one in each.participants})
    beyond = f" Shown: the first {SHOWN_LINES} of {len(everybody):,} clients." if len(everybody) > SHOWN_LINES else ""
    rho = Chart(
        key="rho",
        title="rho by client",
        description=f"How far each silo’s spectrum is from the anchor’s; 0 would be the same.{beyond}",
        x="round",
        y="rho",
        lines=tuple(_line(run, name, "rho") for name in everybody[:SHOWN_LINES]),
        bounds=(0.0, None),
    )
    rhobar = Chart(
        key="rhobar",
        title="rhobar by client",
        description=f"The share of the common mean in what a client gets; the rest is its own.{beyond}",
        x="round",
        y="rhobar",
        lines=tuple(_line(run, name, "rhobar") for name in everybody[:SHOWN_LINES]),
        bounds=(0.0, 1.0),
    )
    return rho, rhobar


def _line(run: RunHistoryOut, client: str, figure: Literal["rho", "rhobar"]) -> Line:
    """The client's figure in every round that it sent an update in."""
    found = [(each.number, one) for each in run.rounds for one in each.participants if one.client == client]
    return Line(client, tuple((number, one.rho if figure == "rho" else one.rhobar) for number, one in found))


def _arrivals_chart(run: RunHistoryOut) -> Chart:
    closed = [one for one in run.rounds if one.closed_at is not None]
    expected = tuple((one.number, float(len(one.participants))) for one in closed)
    came = tuple((one.number, float(len(one.participants) - len(one.missing))) for one in closed)
    return Chart(
        key="came",
        title="Updates by round",
        description="How many came until the round was closed, beside how many clients were enrolled.",
        x="round",
        y="updates",
        lines=(Line("came", came), Line("enrolled", expected)),
        bounds=(0.0, None),
        digits=0,
    )


def _time(run: RunHistoryOut) -> Chart:
    return Chart(
        key="time",
        title="Round time",
        description="From a round’s opening to its last update or its deadline.",
        x="round",
        y="seconds",
        lines=(Line("Seconds", tuple((one.number, length(one)) for one in run.rounds)),),
        bounds=(0.0, None),
        digits=2,
    )


SHOWN = 20


@dataclass(frozen=True)
class ArrivalRow:
    """One join or update, taken or refused."""

    arrival: ArrivalOut
    outcome: Verdict


@dataclass(frozen=True)
class Arrived:
    """One page of the record; `older` and `newer` are where to go on, where there is more."""

    rows: tuple[ArrivalRow, ...]
    total: int
    older: str | None
    newer: str | None


def window(total: int, before: int | None) -> tuple[int, int]:
    """After which arrival, and how many: the newest ones with a number under `before`, by default of all."""
    last = total if before is None else max(0, min(before - 1, total))
    return max(0, last - SHOWN), max(1, min(SHOWN, last))


def arrivals_page(found: ArrivalsOut, chosen: str | None) -> Arrived:
    """`chosen`: the run that the page is asked for, which its links keep."""
    entries = found.entries
    first, last = (entries[0].sequence, entries[-1].sequence) if entries else (1, 0)
    keep = "" if chosen is None else f"run={chosen}&"
    return Arrived(
        rows=tuple(ArrivalRow(one, _outcome(one)) for one in entries[::-1]),
        total=found.total,
        older=f"./?{keep}before={first}#arrivals" if first > 1 else None,
        newer=f"./?{keep}before={last + SHOWN + 1}#arrivals" if last < found.total else None,
    )


def _outcome(one: ArrivalOut) -> Verdict:
    if one.status >= LEAST_REFUSED:
        return Verdict("bad", f"refused: {one.code or one.status}", f"answered with status {one.status}")
    return Verdict("good", "taken", f"answered with status {one.status}")
