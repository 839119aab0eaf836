"""Evidence that was left out, is old, or never tried something: the report is red and says whose it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from audit.checks.presence import ReportRequirements
from audit.evidence.case import open_case
from audit.evidence.evidence import PartEvidence, ProbeResult
from audit.probes import kinds
from audit.probes.inquiry import _with_probes
from audit.report import make_report

if TYPE_CHECKING:
    from conftest import Parts

CONTAINED = tuple(kind for group in kinds.GROUPS for kind in group)
PROBED, LATER, YESTERDAY = ReportRequirements(), "2026-01-01T00:20:00+00:00", "2025-12-31T00:00:00+00:00"


def of_kind(kind: str) -> ProbeResult:
    return ProbeResult(kind=kind, name="a try", expected="refused", observed="refused", held=True)


def probed(part: PartEvidence, *, contained: bool = True) -> PartEvidence:
    tried = tuple(of_kind(kind) for kind in kinds.expected_kinds(part.role, CONTAINED if contained else ()))
    return part.model_copy(update={"probes": tried})


@pytest.fixture
def whole(parts: Parts) -> Parts:
    """Every part's evidence, with every kind of probe."""
    gateway = PartEvidence(name="gateway-1", role="gateway", taken_at=LATER)
    return {name: probed(part) for name, part in {**parts, "gateway-1": gateway}.items()}


def broken(parts: Parts, asked: ReportRequirements = PROBED) -> dict[str, str]:
    made = make_report(open_case(tuple(parts.values())), asked)
    assert made.held == (not [one for one in made.findings if not one.held])
    return {one.name: "; ".join(one.faults) for one in made.findings if not one.held}


def test_whole_evidence_holds(whole: Parts) -> None:
    assert broken(whole) == {} and broken(whole, ReportRequirements(parts=tuple(whole))) == {}


@pytest.mark.parametrize("gone", ["client-2", "aggregator", "gateway-1"])
def test_a_part_that_is_named_and_gives_nothing_fails(whole: Parts, gone: str) -> None:
    asked = ReportRequirements(parts=tuple(whole))
    del whole[gone]
    assert f"{gone}: no evidence" in broken(whole, asked)["evidence"]


def test_a_client_that_the_aggregator_knows_from_a_run_alone_must_have_given_evidence(whole: Parts) -> None:
    (run,) = whole["aggregator"].runs
    with_more = run.model_copy(update={"missing": ("client-3",)})
    whole["aggregator"] = whole["aggregator"].model_copy(update={"runs": (with_more,)})
    assert broken(whole) == {"evidence": "client-3: no evidence"}


@pytest.mark.parametrize("name", ["client-1", "aggregator", "gateway-1"])
def test_a_part_without_any_probe_fails_by_name(whole: Parts, name: str) -> None:
    whole[name] = whole[name].model_copy(update={"probes": ()})
    found = broken(whole)
    assert list(found) == ["every probe"] and f"{name}: no probe of 'outside by TCP'" in found["every probe"]
    assert broken(whole, ReportRequirements(probed=False)) == {}


def test_no_kind_of_probe_is_silently_missing(whole: Parts) -> None:
    for name, part in tuple(whole.items()):
        for left_out in part.probes:
            fewer = tuple(one for one in part.probes if one != left_out)
            told = broken({**whole, name: part.model_copy(update={"probes": fewer})})
            assert told == {"every probe": f"{name}: no probe of {left_out.kind!r}"}


def test_probes_of_containers_are_asked_of_all_once_one_part_has_tried_them(parts: Parts) -> None:
    bare = {name: probed(part, contained=False) for name, part in parts.items()}
    assert broken(bare) == {}
    bare["aggregator"] = probed(parts["aggregator"])
    assert "client-1: no probe of 'confinement'" in broken(bare)["every probe"]


def test_old_evidence_and_old_probes_fail_by_name(whole: Parts) -> None:
    stale = {**whole, "client-1": whole["client-1"].model_copy(update={"taken_at": YESTERDAY})}
    assert broken(stale) == {"freshness": "client-1: evidence 87,600 seconds older than the newest"}
    assert broken(stale, ReportRequirements(within=100_000.0)) == {}
    before = whole["client-1"].model_copy(update={"taken_at": YESTERDAY})
    live = _with_probes(tuple(whole.values()), [before])
    told = broken({part.name: part for part in live})
    assert told == {"freshness": "client-1: probes 87,600 seconds older than the newest"}
    unknown = {**whole, "client-1": whole["client-1"].model_copy(update={"taken_at": "lately"})}
    assert broken(unknown) == {"freshness": "client-1: evidence of an unknown time"}


def test_evidence_from_before_the_end_of_the_run_fails(whole: Parts) -> None:
    (run,) = whole["aggregator"].runs
    closed = run.rounds[-1].model_copy(update={"closed_at": "2026-01-01T00:10:00+00:00"})
    later = run.model_copy(update={"rounds": (*run.rounds[:-1], closed)})
    whole["aggregator"] = whole["aggregator"].model_copy(update={"runs": (later,), "taken_at": LATER})
    told = broken(whole)["freshness"]
    assert "client-1: evidence from before the last round had closed" in told and "aggregator" not in told
