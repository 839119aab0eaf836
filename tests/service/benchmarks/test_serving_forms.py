"""Compiled forms beside their models: every kind of basket is judged, and the exact form loses nothing."""

from __future__ import annotations

import pytest

from benchmarks.serving_forms import SIZES, as_table, judge_shard
from tests.support.given import Silos


def test_the_exact_form_gains_and_loses_nothing(shared_silos: Silos) -> None:
    """In a silo of few users, of whose intervals none is narrow enough for another form."""
    found = judge_shard(shared_silos(1)[0], most=1000)
    assert found.form == "exact" and found.megabytes > 0.0 and set(found.lists) == set(SIZES)
    assert [gain.kind for gain in found.gains] == ["baskets", "new users", "small"]
    for gain in found.gains:
        assert gain.holds and abs(gain.mean) < 1e-3 and 0.0 < gain.exact <= 1.0 and gain.users > 0
    assert as_table([found]).count("| yes |") == 3
    dense = judge_shard(shared_silos(1)[0], most=1000, form="exact")
    assert dense.gains == found.gains and dense.why == "by --form"


def test_a_form_that_there_is_not_is_refused(shared_silos: Silos) -> None:
    with pytest.raises(SystemExit, match="expected one of"):
        judge_shard(shared_silos(1)[0], most=10, form="sparse")
