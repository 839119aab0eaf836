"""Checks that all required evidence is there, recent, and of every kind of probe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from shared.words import count_noun

if TYPE_CHECKING:
    from audit.checks.findings import AuditFinding
    from audit.evidence.case import AuditCase
    from audit.evidence.evidence import PartEvidence

WITHIN_SECONDS = 3600.0  # longest time between the oldest and the newest evidence
CLOCKS_SECONDS = 120.0  # largest difference between the clocks of two parts


@dataclass(frozen=True)
class ReportRequirements:
    """Evidence that the report requires.

    parts: parts that must have given evidence, beside the aggregator and every client that it knows. probed: whether
    all must have been probed. within: seconds between the oldest and the newest evidence.
    """

    parts: tuple[str, ...] = ()
    probed: bool = True
    within: float = WITHIN_SECONDS


RECORDS_ONLY = ReportRequirements(probed=False)


def check_presence(case: AuditCase, requirements: ReportRequirements) -> AuditFinding:
    """Checks that every required part has given evidence."""
    from audit.checks.findings import make_finding

    there = {part.name for part in case.parts}
    faults = [f"{name}: no evidence" for name in case.known_clients if name not in case.clients]
    faults += [
        f"{name}: no evidence" for name in requirements.parts if name not in there and name not in case.known_clients
    ]
    faults += [] if case.aggregator else ["aggregator: no evidence"]
    others = len(case.parts) - len(case.clients) - (case.aggregator is not None)
    return make_finding(
        "evidence",
        "evidence of the aggregator, of every client that it knows, and of every part that is named",
        f"the aggregator and {count_noun(len(case.clients), 'client')}" + (f", {others} more" if others else ""),
        faults if case.clients else [*faults, "no evidence of any client"],
    )


def check_freshness(case: AuditCase, requirements: ReportRequirements) -> AuditFinding:
    """Checks that all evidence is of one time, after the last round closed.

    Older evidence describes a part that may have changed since.
    """
    from audit.checks.findings import make_finding

    return make_finding(
        "freshness",
        f"evidence of all parts within {requirements.within:g} seconds, and after the last round had closed",
        f"{count_noun(len(case.parts), 'part')}, all of one time",
        _stale_faults(case, requirements),
    )


def _stale_faults(case: AuditCase, requirements: ReportRequirements) -> Iterator[str]:
    times = {(part.name, what): at for part in case.parts for what, at in _evidence_times(part, requirements)}
    for (name, what), at in times.items():
        if at is None:
            yield f"{name}: {what} of an unknown time"
    known = {place: at for place, at in times.items() if at is not None}
    newest, closed = max(known.values(), default=0.0), _last_close_seconds(case)
    for (name, what), at in known.items():
        if newest - at > requirements.within:
            yield f"{name}: {what} {newest - at:,.0f} seconds older than the newest"
        elif at < closed - CLOCKS_SECONDS:
            yield f"{name}: {what} from before the last round had closed"


def _evidence_times(part: PartEvidence, requirements: ReportRequirements) -> Iterator[tuple[str, float | None]]:
    yield "evidence", _epoch_seconds(part.taken_at)
    if requirements.probed and part.probed_at is not None:
        yield "probes", _epoch_seconds(part.probed_at)


def _last_close_seconds(case: AuditCase) -> float:
    closed = (
        _epoch_seconds(entry.closed_at) for run in case.runs for entry in run.rounds if entry.closed_at is not None
    )
    return max((at for at in closed if at is not None), default=0.0)


def _epoch_seconds(text: str) -> float | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def check_coverage(case: AuditCase) -> AuditFinding:
    """Checks that every part has made each kind of probe of its role.

    A probe that was not made cannot fail.
    """
    from audit.checks.findings import make_finding
    from audit.probes import kinds

    tried_kinds = {probe.kind for part in case.parts for probe in part.probes}
    missing = (
        f"{part.name}: no probe of {kind!r}"
        for part in case.parts
        for kind in kinds.expected_kinds(part.role, tried_kinds)
        if kind not in {probe.kind for probe in part.probes}
    )
    return make_finding(
        "every probe",
        "every part has made each kind of probe that its role requires",
        f"{count_noun(len(tried_kinds), 'kind')} of probes",
        missing,
    )
