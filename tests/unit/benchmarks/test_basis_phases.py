"""The phases of a basis run add up: what is masked, sent and summed is the sum, and a basis comes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.basis_phases import MadeFederation, MeasuredPhase, measure_phases
from shared.method.settings import method_settings


@pytest.mark.parametrize("kind", ["exact", "iterated", "packed"])
def test_each_phase_is_measured_and_the_masks_cancel(tmp_path: Path, kind: str) -> None:
    said = {"basis.words": 2, "basis.kind": "iterated"} if kind == "packed" else {"basis.kind": kind}
    method = method_settings(**said, **{"basis.rank": 4, "catalogue": 60})
    federation = MadeFederation(3, method, tmp_path)
    phases = measure_phases(federation)
    assert [phase.name for phase in phases] == ["count", "mask", "upload", "sum", "finish"]
    assert all(phase.seconds > 0 and phase.mib > 0 for phase in phases)
    own, sums = federation.count(federation.draw_records()), federation.sum()
    assert all(np.array_equal(sums[name], 3 * np.asarray(one)) for name, one in own.items())
    numbers = {"exact": 60 + 60 * 59 // 2, "iterated": 60 + 60 * 4, "packed": 60 + 60 * 2}[kind]
    assert phases[2].bytes == sum((tmp_path / name).stat().st_size for name in federation.names[:1]) > 4 * numbers


def test_a_phase_stands_beside_the_calibration() -> None:
    assert MeasuredPhase("sum", 3.0, 12.5, 4000).text(unit=0.5).split() == (
        ["sum", "3.00", "s", "(", "6.00", "of", "the", "calibration),", "12.5", "MiB;", "4,000", "bytes"]
    )
