"""The benchmark of the first model: every phase once, in order, and the model of round 0 served at its end."""

from __future__ import annotations

import time

from benchmarks.speed.first_model import Stopwatch, calibrate, measure
from tests.support.given import Silos


def test_each_phase_is_measured_once_and_the_start_is_served(silos: Silos) -> None:
    phases, version, quality = measure(silos(1)[0])
    assert [phase.name for phase in phases] == ["read", "publish", "spectrum", "filter", "recipe", "model", "serve"]
    assert version == "run-1.0" and 0.0 <= quality <= 1.0
    assert all(phase.wall >= 0 and phase.cpu >= 0 for phase in phases)


def test_a_phase_within_another_is_not_counted_twice() -> None:
    watch = Stopwatch()
    with watch.phase("outer"), watch.phase("inner"):
        time.sleep(0.05)
    inner, outer = watch.phases
    assert (inner.name, outer.name) == ("inner", "outer") and outer.wall < 0.05 <= inner.wall


def test_the_calibration_has_both_kinds_of_work() -> None:
    assert all(seconds > 0 for seconds in calibrate().values()) and set(calibrate()) == {"gemm", "copy"}
