"""The search of every method: what is kept of it, how it is told, and what it is held against."""

from __future__ import annotations

import pytest

from benchmarks.harness.plan import read_plan
from benchmarks.tuning.run import check, choose_values, render

FOUND = {"values": {"learning_rate": 0.0123}, "default": 0.3, "validation": 0.303}


@pytest.mark.parametrize(("worth", "kept"), [(0.005, {"learning_rate": 0.0123}), (0.02, {})])
def test_a_gain_below_the_noise_keeps_the_settings(worth: float, kept: dict[str, float]) -> None:
    assert choose_values(FOUND, worth) == kept


def test_settings_that_did_not_run_are_replaced() -> None:
    assert choose_values({**FOUND, "default": None}, 0.5) == FOUND["values"]


def row(**changes: object) -> dict[str, object]:
    spent = {"trials": 6, "pruned": 2, "epochs": 14, "rounds": 3}
    return {"data": "ml-1m", "label": "FedMF", **spent, **FOUND, "chosen": {}, **changes}


def test_a_row_says_what_was_spent_and_gained() -> None:
    *_, last, _, missing = render([row()]).splitlines()
    assert last == "| FedMF | 14 | 2 | .3000 | .3030 | learning_rate 0.0123 | as they were |"
    assert missing.startswith("Not searched, at the defaults: FedAvg,") and "FedMF" not in missing


def test_nothing_is_missing_where_every_row_was_searched() -> None:
    every = [row(label=one.label) for one in read_plan("table1").methods]
    assert "Not searched" not in render(every)


def test_unequal_budgets_and_losses_are_told() -> None:
    assert check([row(), row(label="LPSFed")]) == []
    assert "same budget" in check([row(), row(trials=7)])[0]
    assert "FedMF" in check([row(validation=0.2)])[0]
