"""The cost model finds made-up coefficients, says how far it is off beyond them, and refuses too few points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.speed import cost_model
from benchmarks.speed.cost_model import FIGURES, LoadPoint, describe, extrapolate, fit_model, read_point

COEFFICIENTS = {
    "processor seconds": (0.5, 0.012, 2e-8),
    "network bytes": (4_000.0, 6_000.0, 2.0),
    "rows": (2.0, 2.0, 0.0),
    "stored bytes": (9_000.0, 700.0, 1.0),
}


def make_point(clients: int, size: int, more: float = 1.0) -> LoadPoint:
    terms = (1.0, clients, clients * size)
    costs = {name: more * sum(a * b for a, b in zip(terms, COEFFICIENTS[name], strict=True)) for name in FIGURES}
    return LoadPoint(clients, size, costs)


POINTS = [make_point(clients, size) for clients in (50, 200, 2_000) for size in (10_000, 100_000, 1_000_000)]


def test_the_coefficients_of_made_up_points_are_found() -> None:
    model = fit_model(POINTS)
    for figure, expected in COEFFICIENTS.items():
        assert model.coefficients[figure] == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert (model.least, model.most) == (50, 2_000)


def test_a_cost_that_grows_faster_than_the_clients_shows_as_an_error_beyond_them() -> None:
    judged = make_point(10_000, 100_000, more=2.0)
    model = fit_model(POINTS)
    assert model.errors(judged) == pytest.approx(dict.fromkeys(FIGURES, -0.5))
    text = "\n".join(describe(model, POINTS, [judged]))
    assert "10,000" in text and "(-50%)" in text
    assert "1,000,000" in extrapolate(model, [1_000_000], 1e5)


def test_no_coefficient_is_negative() -> None:
    falling = [LoadPoint(one.clients, one.update_bytes, dict.fromkeys(FIGURES, 1e6 / one.clients)) for one in POINTS]
    assert all(value >= 0 for found in fit_model(falling).coefficients.values() for value in found)


def test_points_that_are_the_same_fit_nothing() -> None:
    with pytest.raises(ValueError, match="3 or more different points to fit, got 4"):
        fit_model([POINTS[0]] * 4)


def test_a_printed_load_is_a_point_of_one_round() -> None:
    phases = [{"name": name, "seconds": 1.0, "processor": 3.0, "mib": 1} for name in ("join", "updates 1", "sum 1")]
    told = {"clients": 7, "rounds": 2, "update_bytes": 10, "phases": phases, "sent": 5, "received": 3, "rows": 8}
    point = read_point(json.dumps(told | {"disk": 12}))
    assert point.costs == {"processor seconds": 3.0, "network bytes": 4.0, "rows": 4.0, "stored bytes": 6.0}


def test_files_of_printed_loads_are_read_without_their_other_lines(tmp_path: Path) -> None:
    file = tmp_path / "points"
    file.write_text("join: 100%\n", "utf-8")
    assert cost_model.read_points([file]) == []
