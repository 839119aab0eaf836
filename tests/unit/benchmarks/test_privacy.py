"""The rows of the table of epsilons spend what they are named for, and are cells of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.harness.cells import available_settings, plan_cells, settings_hash
from benchmarks.harness.measure import Work, measure_federation
from benchmarks.harness.plan import Row, read_plan, special_functions
from client_service.privacy.accounting import planned_epsilon
from client_service.privacy.settings import PrivacySettings
from shared.method.settings import validate_settings

PLAN = read_plan("privacy")
NOISED = [row for row in PLAN.methods if row.privacy]


@pytest.mark.parametrize("row", NOISED, ids=[row.label for row in NOISED])
def test_a_run_of_a_row_spends_its_epsilon_and_not_more(row: Row) -> None:
    spent = planned_epsilon(validate_settings(PrivacySettings, row.privacy), ("margin", "rho"), PLAN.rounds)
    assert row.value is not None and 0.99 * row.value < spent <= row.value == row.privacy["budget"]
    assert row.label.endswith(f"epsilon {row.value:g}") and f"C {row.privacy['clip_norm']:g}" in row.label


def test_noise_makes_another_cell_and_no_noise_leaves_the_others_as_they_were() -> None:
    found = {cell.row.label: cell.outcome_settings() for cell in plan_cells(PLAN) if cell.seed == 0}
    assert len({settings_hash(found[row.label]) for row in NOISED}) == len(NOISED)
    plain, _ = available_settings(Row(label="LPSFed", strategy="lpsfed"), frozenset())
    assert plain is not None and not any(name.startswith("privacy") for name in found["LPSFed"])


def line(spent: float) -> dict[str, Any]:
    chosen = {f"privacy.{name}": value for name, value in NOISED[0].privacy.items()}
    head = {"label": NOISED[0].label, "strategy": "lpsfed", "rounds": PLAN.rounds}
    return {**head, "settings": {"width": 64, **chosen}, "spent": {"client-1": spent}}


def test_what_was_spent_is_told_and_checked() -> None:
    offers = special_functions("privacy")
    wanted = planned_epsilon(validate_settings(PrivacySettings, NOISED[0].privacy), ("margin", "rho"), PLAN.rounds)
    plain = {"label": "LPSFed", "strategy": "lpsfed", "rounds": 5, "settings": {"width": 64}}
    assert offers["check"]([plain, line(wanted)]) == []
    assert "expected epsilon" in offers["check"]([line(wanted + 0.1)])[0]
    assert f"| {NOISED[0].label} | {wanted:.4g} |" in offers["render"]([plain, line(wanted)])
    assert offers["render"]([plain]) == ""


def test_a_measured_cell_says_what_was_spent(small: Callable[..., Work]) -> None:
    work = small(table="privacy", privacy=NOISED[0].privacy)
    spent = planned_epsilon(validate_settings(PrivacySettings, NOISED[0].privacy), ("margin", "rho"), 1)
    assert measure_federation(work)["spent"] == {name: pytest.approx(spent) for name in ("client-1", "client-2")}
