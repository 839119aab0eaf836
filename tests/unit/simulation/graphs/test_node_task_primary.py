"""The measure that a search reports is the one by which the silos' validation chooses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from client_service.data.node_files import save_node_shard
from simulation.experiments.tasks import simulated_task
from tests.unit.client_service.data.test_node_files import make_shard


@pytest.mark.parametrize(("classes", "expected"), [(("bad", "good"), "auc"), (("bad", "good", "odd"), "accuracy")])
def test_classes_choose_the_measure(tmp_path: Path, classes: tuple[str, ...], expected: str) -> None:
    save_node_shard(tmp_path, replace(make_shard(), classes=classes))
    assert simulated_task("nodes").choose_primary([tmp_path]) == expected


def test_other_tasks_have_one_measure(tmp_path: Path) -> None:
    assert simulated_task("items").choose_primary([tmp_path]) == "ndcg"
