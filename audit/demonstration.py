"""Evidence -> the same with one deliberate break in it, which the report must call by its name.

The probes of a client send, past its gate and signed with its key, what a dishonest client would: among other things an
update with one tensor more than declared. They say so in their evidence. Without that word nobody has sent it.
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
    """`gate`, `aggregator`: their answers to the undeclared update of `client`; `red`: the report if no probe claims
    it."""

    client: str
    gate: str
    aggregator: str
    red: PrivacyReport


def plant_break(parts: Sequence[PartEvidence], asked: ReportRequirements = RECORDS_ONLY) -> Demonstration:
    """The first client whose probes sent such an update. DataError where none did, or where the report holds all the
    same: then it would not have named a dishonest client either."""
    for part in parts:
        if part.declaration is not None and (silent := _without_break(part, part.declaration)) != part:
            red = make_report(open_case([silent if other is part else other for other in parts]), asked)
            if red.held:
                raise DataError(f"{part.name}: expected a report that names a deliberate break, got one that holds")
            return Demonstration(part.name, _observed_break(part, gate.KIND), _observed_break(part, uploads.KIND), red)
    raise DataError(f"expected evidence of probes that have sent an update with {BREAK}, got none")


def _without_break(part: PartEvidence, declaration: Declaration) -> PartEvidence:
    """The evidence of a client whose probes do not report these updates."""
    honest = tuple(sending for sending in part.sent if not _is_break(sending, part.name, declaration))
    return part.model_copy(update={"sent": honest})


def _is_break(sent: ProbeSending, client: str, declaration: Declaration) -> bool:
    if sent.run is None or sent.round is None:
        return False
    _, malformed = probe_bodies(declaration, client, sent.run, sent.round)
    return hashlib.sha256(malformed[BREAK]).hexdigest() == sent.sha256


def _observed_break(part: PartEvidence, kind: str) -> str:
    return next((result.observed for result in part.probes if (result.kind, result.name) == (kind, BREAK)), "not tried")
