"""Evidence with one deliberate break, which the report must name.

The probes of a client send, past its gate and signed with its key, what a dishonest client would: among other things
an update with one tensor more than declared. Their evidence says so. Without that statement the update has no sender.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from audit.checks.presence import RECORDS_ONLY, ReportRequirements
from audit.evidence.case import open_case
from audit.evidence.evidence import PartEvidence, ProbeSending
from audit.probes import gate, uploads
from audit.probes.bodies import probe_bodies
from audit.report import PrivacyReport, make_report
from shared.errors import DataError
from shared.method.declaration import Declaration

BREAK = "one tensor more"


@dataclass(frozen=True)
class Demonstration:
    """Answers to an undeclared update, and the report where no probe claims it.

    gate, aggregator: their answers to the update of `client`. red: the report.
    """

    client: str
    gate: str
    aggregator: str
    red: PrivacyReport


def plant_break(parts: Sequence[PartEvidence], requirements: ReportRequirements = RECORDS_ONLY) -> Demonstration:
    """Removes a probe's statement about an undeclared update, and makes the report.

    It takes the first client whose probes sent such an update. Raises DataError if there is none, or if the report
    finds no fault: then it would not name a dishonest client either.
    """
    for part in parts:
        if part.declaration is not None and (silent := _without_break(part, part.declaration)) != part:
            red = make_report(open_case([silent if other is part else other for other in parts]), requirements)
            if red.held:
                raise DataError(f"{part.name}: expected a report that names a deliberate break, got one that holds")
            return Demonstration(part.name, _observed_break(part, gate.KIND), _observed_break(part, uploads.KIND), red)
    raise DataError(f"expected evidence of probes that have sent an update with {BREAK}, got none")


def _without_break(part: PartEvidence, declaration: Declaration) -> PartEvidence:
    """Returns the evidence of a client without its probes' undeclared updates."""
    honest = tuple(sending for sending in part.sent if not _is_break(sending, part.name, declaration))
    return part.model_copy(update={"sent": honest})


def _is_break(sent: ProbeSending, client: str, declaration: Declaration) -> bool:
    if sent.run is None or sent.round is None:
        return False
    _, malformed = probe_bodies(declaration, client, sent.run, sent.round)
    return hashlib.sha256(malformed[BREAK]).hexdigest() == sent.sha256


def _observed_break(part: PartEvidence, kind: str) -> str:
    return next((result.observed for result in part.probes if (result.kind, result.name) == (kind, BREAK)), "not tried")
