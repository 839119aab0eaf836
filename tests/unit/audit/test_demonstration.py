"""The deliberate break at the end of `docker compose up`: red by name; a report that would not see it is an error."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from audit import console
from audit.cli import privacy_report
from audit.demonstration import BREAK, plant_break
from audit.evidence import evidence
from audit.evidence.evidence import PartEvidence, ProbeResult, ProbeSending
from audit.probes import bodies, gate, uploads
from shared.errors import DataError

if TYPE_CHECKING:
    from conftest import Tampered


def tried(mine: Tampered) -> Sequence[PartEvidence]:
    """client-1's probes have sent the update, once at two rounds each, and the aggregator has refused it."""
    declaration = mine.parts["client-1"].declaration
    assert declaration is not None
    body = bodies.malformed_updates(declaration)[BREAK]
    digest, arrivals = hashlib.sha256(body).hexdigest(), mine.parts["aggregator"].arrivals
    place = [{"call": "update", "run": "run-1", "round": number} for number in (1, 2)]
    said = {"client": "client-1", "size": len(body), "digest": digest, "status": 422}
    came = [arrivals[0].model_copy(update=said | at | {"sequence": 90 + at["round"]}) for at in place]
    sent = [ProbeSending.model_validate(at | {"bytes": len(body), "sha256": digest, "status": 422}) for at in place]
    probes = [
        ProbeResult(kind=gate.KIND, name=BREAK, expected="refused", observed="refused, nothing sent", held=True),
        ProbeResult(kind=uploads.KIND, name=BREAK, expected="422 protocol", observed="422 protocol", held=True),
    ]
    mine.change("aggregator", arrivals=(*arrivals, *came))
    mine.change("client-1", sent=tuple(sent), probes=tuple(probes))
    return tuple(mine.parts.values())


def test_a_break_that_nobody_owns_up_to_is_named_and_nothing_of_the_evidence_is_changed(mine: Tampered) -> None:
    parts = tried(mine)
    assert mine.broken() == {}
    found = plant_break(parts)
    assert (found.client, found.gate, found.aggregator) == ("client-1", "refused, nothing sent", "422 protocol")
    broken = {one.name: one.faults for one in found.red.findings if not one.held}
    assert list(broken) == ["arrivals"] and len(broken["arrivals"]) == 2
    assert broken["arrivals"][0].startswith("client-1, update of run-1 round 1, refused with 422")
    assert mine.broken() == {}


def test_evidence_in_which_nobody_has_tried_it_cannot_show_it(mine: Tampered) -> None:
    with pytest.raises(DataError, match="expected evidence of probes that have sent an update with one tensor more"):
        plant_break(tuple(mine.parts.values()))


def test_a_report_that_would_not_have_seen_it_is_an_error_and_no_green_one(mine: Tampered) -> None:
    """As if the aggregator kept no record of what it refuses."""
    tried(mine)
    kept = tuple(one for one in mine.parts["aggregator"].arrivals if one.sequence < 90)
    mine.change("aggregator", arrivals=kept)
    assert mine.broken() == {}
    with pytest.raises(
        DataError, match="client-1: expected a report that names a deliberate break, got one that holds"
    ):
        plant_break(tuple(mine.parts.values()))


def test_what_is_shown_is_first_red_then_green_and_each_fits_a_screen(
    mine: Tampered, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console.OUT, "_width", 110)
    for part in tried(mine):
        evidence.write_evidence(part, tmp_path / f"{part.name}.json")
    privacy_report(files=[tmp_path], brief=True, demonstrate=True, records_only=True)
    red, _, green = capsys.readouterr().out.partition("The report with all evidence:")
    assert "1. A deliberate break" in red and "This evidence does not show that nothing undeclared crossed" in red
    assert (
        "client-1, update of run-1 round 1, refused with 422" in red
        and "422 protocol. The aggregator's record has it" in red
    )
    assert "2. What crossed" in green and "Nothing undeclared crossed, and all that crossed is on record" in green
    assert "All fields of the update of client-1" in green and "NOT HELD" not in green
    assert len(red.splitlines()) < 20 and len(green.splitlines()) < 40
