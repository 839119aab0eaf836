"""The command that measures lists of small silos without text, with their own, and with all silos' sums."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cold.run import read_catalogue
from benchmarks.cold.warm import BASIS, BOTH, FEDERATED, NONE, OWN, draw_silos, main, sum_unlike_items
from client_service.models.closed_form.content import add_constant, sum_content
from tests.unit.benchmarks.test_cold import write_films


def test_all_ways_are_measured_of_the_same_users_and_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(write_films(tmp_path)), "--users", "15", "--silos", "2", "--draws", "1", "--basis", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["ndcg@20"].keys() == {NONE, OWN, FEDERATED, BASIS, BOTH}
    by_pair = {(one["way"], one["over"]): one for one in found["gains"]}
    assert by_pair.keys() == {(OWN, NONE), (FEDERATED, NONE), (FEDERATED, OWN), (BOTH, BASIS)}
    own = by_pair[OWN, NONE]
    assert own["difference"] == pytest.approx(found["ndcg@20"][OWN] - found["ndcg@20"][NONE], abs=2e-4)
    together = by_pair[FEDERATED, NONE]
    assert together["difference"] > together["interval"] > 0.0, "a film's kind is in its title"


def test_splits_are_disjoint_and_sums_of_others_have_nothing_of_the_silo(tmp_path: Path) -> None:
    catalogue = read_catalogue(write_films(tmp_path))
    task = draw_silos(catalogue, 15, 2, 0)
    whole = sum(one.toarray() for one in task.splits)
    np.testing.assert_array_equal(whole, catalogue.interactions.toarray())
    table = add_constant(catalogue.features)
    everybody = sum_content(task.splits[0], table)
    others = np.setdiff1d(np.arange(60), task.silos[0])
    left = everybody.add(sum_content(task.make_shard(task.silos[0]).train, table), -1.0)
    np.testing.assert_allclose(left.profiles, sum_content(task.splits[0][others], table).profiles, atol=1e-8)
    unlike = sum_unlike_items(task, task.silos[0], table)
    assert 0 < np.trace(unlike.profiles) < np.trace(left.profiles)
