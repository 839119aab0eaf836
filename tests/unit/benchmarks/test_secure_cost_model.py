"""The cost model of secure rounds finds made-up coefficients, and takes the neighbours from the protocol's plan."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from benchmarks.speed.secure_cost_model import (
    FIGURES,
    SecurePoint,
    describe,
    fit_secure_model,
    planned_degree,
    read_secure_points,
    secure_terms,
)

COEFFICIENTS = {
    "processor seconds": (0.03, 0.001, 0.0002),
    "bytes up": (9_000.0, 300.0, 0.0),
    "bytes down": (5_000.0, 300.0, 400.0),
    "rows": (7.0, 0.0, 0.0),
}


def make_point(clients: int, more: float = 1.0) -> SecurePoint:
    degree = planned_degree(clients)
    terms = secure_terms(clients, degree)
    costs = {name: more * sum(a * b for a, b in zip(terms, COEFFICIENTS[name], strict=True)) for name in FIGURES}
    return SecurePoint(clients, degree, costs)


POINTS = [make_point(clients) for clients in (16, 32, 64, 96)]


def test_the_coefficients_of_made_up_rounds_are_found() -> None:
    model = fit_secure_model(POINTS)
    for figure, expected in COEFFICIENTS.items():
        assert model.coefficients[figure] == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_a_round_that_costs_more_shows_as_an_error() -> None:
    judged, model = make_point(128, more=2.0), fit_secure_model(POINTS)
    assert model.errors(judged) == pytest.approx(dict.fromkeys(FIGURES, -0.5))
    text = describe(model, POINTS, judged, [1024, 10_000])
    assert "128, held out" in text and "(-50%)" in text and "1,024, 51 may drop out" in text
    assert "10,000, 10 may drop out" in text and "10,000, 500" not in text


def test_few_silos_are_all_neighbours_and_more_draw_them() -> None:
    assert [planned_degree(count) for count in (16, 63)] == [15, 62]
    assert planned_degree(64) < 63 and planned_degree(1024, dropouts=10 / 1024) < planned_degree(1024)


def test_printed_points_are_read_again() -> None:
    text = "a line\n" + json.dumps({"points": [asdict(one) for one in POINTS], "model": {}})
    assert read_secure_points(text) == POINTS
