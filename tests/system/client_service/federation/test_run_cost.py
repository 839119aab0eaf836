"""What a run is estimated to take in memory is an upper bound of what it takes, by a small factor: measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MOST_FACTOR = 6.0  # at this small size, of which a part that is fixed is the most


@pytest.mark.parametrize(
    ("strategy", "part", "changed"),
    [
        pytest.param("lpsfed", "training", {"basis.kind": "exact"}, marks=pytest.mark.slow),
        ("fedmf", "training", {}),
        ("lpsfed", "basis", {"basis.kind": "exact"}),
        ("lpsfed", "basis", {"basis.kind": "iterated", "basis.words": 64}),
    ],
    ids=lambda value: " ".join(map(str, value.values())) if isinstance(value, dict) else value,
)
def test_an_estimate_of_memory_is_above_the_measured_peak_and_near_it(
    strategy: str, part: str, changed: dict[str, object]
) -> None:
    asked = json.dumps({"strategy": strategy, "part": part, "method": changed, "users": 500, "items": 1_200})
    command = [sys.executable, "-m", "tests.support.peak_of_run", asked]
    root = Path(__file__).parents[4]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout
    found = json.loads(said.splitlines()[-1])
    assert found["peak"] <= found["estimate"] <= MOST_FACTOR * found["peak"], found
