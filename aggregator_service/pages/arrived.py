"""The aggregator's own record of arrivals -> rows of the page, newest first."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator_service.storage.arrivals import LEAST_REFUSED
from shared.protocol.schemas import ArrivalOut, ArrivalsOut
from shared.web.pages import Verdict

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
