"""Ratios by partition and figures by unit, against values computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.harness.plan import UNTRAINED
from benchmarks.harness.summary import Column, Sample, average_by_unit


def sample(partition: int, seed: int | None, *values: float) -> Sample:
    clients: list[dict[str, Any]] = [
        {"client": f"c{number}", "ndcg": value, "recall": value, "test_users": 1}
        for number, value in enumerate(values, start=1)
    ]
    return Sample(partition, seed, clients, {})


@pytest.fixture
def column() -> Column:
    """EASE is the best floor of partition 0 and cannot be had in partition 1; `half` has no run in partition 1."""
    rows = {
        "popularity": [sample(0, None, 0.1, 0.1), sample(1, None, 0.3, 0.1)],
        "EASE": [sample(0, None, 0.4, 0.4)],
        UNTRAINED: [sample(0, None, 0.5, 0.5), sample(1, None, 0.25, 0.25)],
        "LPSFed": [sample(0, 0, 0.5, 0.7), sample(0, 1, 0.3, 0.5), sample(1, 0, 0.4, 0.4)],
        "half": [sample(0, 0, 0.2, 0.2)],
    }
    return Column("x", "x", rows, floors={"popularity", "EASE"})


def test_a_floor_that_a_partition_lacks_is_no_candidate_there(column: Column) -> None:
    assert column.best_floors("ndcg") == pytest.approx({0: 0.4, 1: 0.2})
    assert column.best_floor("ndcg") == pytest.approx(0.3)


def test_ratios_are_over_the_partitions_of_the_row(column: Column) -> None:
    best, untrained = column.best_floors("ndcg"), column.by_partition(UNTRAINED, "ndcg")
    # LPSFed: .6 and .4 in partition 0, so .5; .4 in partition 1. (.5 + .4) / (.4 + .2) and / (.5 + .25)
    assert column.mean_ratio("LPSFed", "ndcg", best) == pytest.approx(1.5)
    assert column.mean_ratio("LPSFed", "ndcg", untrained) == pytest.approx(1.2)
    assert column.mean_ratio("half", "ndcg", best) == pytest.approx(0.5)
    assert column.mean_ratio("EASE", "ndcg", best) == pytest.approx(1.0)
    assert column.mean_ratio("LPSFed", "ndcg", {}) is None and column.mean_ratio("LPSFed", "ndcg", {0: 0.0}) is None
    assert Column("x", "x").best_floor("ndcg") is None


def test_a_unit_is_a_client_of_a_partition_and_seeds_are_averaged(column: Column) -> None:
    expected = {(0, "c1"): 0.4, (0, "c2"): 0.6, (1, "c1"): 0.4, (1, "c2"): 0.4}
    assert average_by_unit(column.rows["LPSFed"], lambda one: one.by_client("ndcg")) == pytest.approx(expected)
    found = column.compare_rows("LPSFed", "ndcg")
    assert {label: one.units for label, one in found.items()} == {"popularity": 4, "EASE": 2, UNTRAINED: 4, "half": 2}
    assert found["popularity"].difference == pytest.approx((0.3 + 0.5 + 0.1 + 0.3) / 4)


def test_two_rows_are_held_together_on_the_seeds_that_both_have(column: Column) -> None:
    # half has seed 0 of partition 0 alone, where LPSFed is at .5 and .7
    assert column.compare_rows("LPSFed", "ndcg")["half"].difference == pytest.approx((0.3 + 0.5) / 2)


def test_a_row_of_the_same_runs_is_no_opponent(column: Column) -> None:
    column.rows["gamma 0.1"] = list(column.rows["LPSFed"])
    assert "gamma 0.1" not in column.compare_rows("LPSFed", "ndcg")
