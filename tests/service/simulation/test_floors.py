"""Floors and the ceiling beside a run: computed once a shard, the ceiling on pooled data and within a silo's items."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy import sparse

import simulation.experiments.floors
from client_service.data.interaction_files import load_shard, write_shard
from client_service.federation.run_records import UNJUDGED
from client_service.training.filter_search import popularity_top
from simulation.engines.study import run_study
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import ignore_progress
from simulation.experiments.floors import FLOORS, START, describe_pooling_limit, measure_all_floors, measure_ceiling
from simulation.experiments.in_process import simulate_experiment
from simulation.experiments.pooled import pool_shards
from tests.support.given import Silos

CUTOFF = 6


def measure(paths: tuple[Path, ...], kept: Path | None) -> dict[str, Any]:
    return measure_all_floors(paths, CUTOFF, cache_folder=lambda _: None, observe=lambda _: None, kept=kept)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The shards whose floors were computed, one after the other."""
    names: list[str] = []

    def count(shard: Any, *others: Any, compute: Any = simulation.experiments.floors.floor_tops) -> Any:
        names.append(shard.name)
        return compute(shard, *others)

    monkeypatch.setattr(simulation.experiments.floors, "floor_tops", count)
    return names


def test_floors_are_computed_once_a_shard(silos: Silos, tmp_path: Path, counted: list[str]) -> None:
    paths = silos(2)
    first = measure(paths, tmp_path / "kept")
    assert counted == ["client-1", "client-2"] and set(first["client-1"]) == {*FLOORS, START}
    assert measure(paths, tmp_path / "kept") == first == measure(paths, None)
    assert counted == ["client-1", "client-2"] * 2  # the last ones were asked for without a folder


def test_other_data_another_cutoff_or_other_code_are_computed_anew(
    silos: Silos, tmp_path: Path, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(silos(1), tmp_path)
    measure(silos(1, seed=5), tmp_path)
    measure_all_floors(silos(1), 5, cache_folder=lambda _: None, observe=lambda _: None, kept=tmp_path)
    monkeypatch.setattr(simulation.experiments.floors, "VERSION", 999)
    measure(silos(1), tmp_path)
    assert len(counted) == 4


def test_a_damaged_file_and_a_folder_that_cannot_be_made_cost_time_alone(
    silos: Silos, tmp_path: Path, counted: list[str]
) -> None:
    first = measure(silos(1), tmp_path / "kept")
    (file,) = (tmp_path / "kept" / "client-1").iterdir()
    file.write_text("nonsense")
    assert measure(silos(1), tmp_path / "kept") == first
    (tmp_path / "taken").write_text("no folder")
    assert measure(silos(1), tmp_path / "taken") == first and len(counted) == 3


def test_pooled_data_have_every_item_once_and_every_silo_s_user(silos: Silos) -> None:
    east, west = (load_shard(path) for path in silos(2))
    whole, (_, second) = pool_shards([east, west])
    assert whole.item_ids == east.item_ids and len(whole.user_ids) == 32
    for split in ("train", "valid", "test"):
        np.testing.assert_array_equal(getattr(whole, split).toarray()[16:], getattr(west, split).toarray())
    assert second.users.tolist() == list(range(16, 32))


def test_a_silo_s_lists_from_pooled_data_have_its_own_items_alone(tmp_path: Path) -> None:
    pairs = {"a": "1 2 3", "b": "2 3 9"}
    paths = []
    for name in ("one", "two"):
        rows = [
            (user, f"{name if item == '9' else ''}{item}") for user, items in pairs.items() for item in items.split()
        ]
        table = pl.DataFrame(rows, schema=["user", "item"], orient="row").with_columns(split=pl.lit("train"))
        write_shard(tmp_path / name, name, table, None)
        paths.append(tmp_path / name)
    whole, slices = pool_shards([load_shard(path) for path in paths])
    assert whole.item_ids == ("1", "2", "3", "one9", "two9")
    silo = slices[1].shard
    top = slices[1].restrict_lists(popularity_top(whole), 5)

    def lists(seen: sparse.csr_array) -> list[list[str]]:
        return [[silo.item_ids[row] for row in rows if row >= 0] for rows in top(np.arange(2), seen, 4)]

    assert lists(sparse.csr_array(silo.train.shape)) == [["2", "3", "1", "two9"]] * 2
    assert lists(silo.train) == [["two9"], ["1"]]


def test_the_ceiling_of_one_silo_is_its_own_start(silos: Silos, tmp_path: Path) -> None:
    paths = silos(1)
    own = measure(paths, None)["client-1"][START]
    assert measure_ceiling(paths, CUTOFF) == {"client-1": own} == measure_ceiling(paths, CUTOFF, tmp_path)


def test_more_data_than_can_be_pooled_are_left_alone_with_the_reason(
    silos: Silos, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert describe_pooling_limit(silos(2)) is None
    monkeypatch.setattr(simulation.experiments.floors, "POOLED_ITEMS", 11)
    assert "32 users and 12 items in all" in (describe_pooling_limit(silos(2)) or "")


def study(experiment: Experiment, **options: Any) -> dict[str, Any]:
    report = run_study(experiment, simulate_experiment, edges_kept=None, shown=False, **options)
    assert report == json.loads((experiment.folder / "report.json").read_text(), parse_constant=pytest.fail)
    return report


def left_out(report: dict[str, Any]) -> list[str]:
    """The notes but for the one on training, which the validation items of so small silos decide by chance."""
    return [note for note in report["notes"] if "strategy.train=false" not in note]


def test_a_report_has_what_a_silo_has_alone_together_and_with_all_data(
    experiment: Callable[..., Experiment], counted: list[str]
) -> None:
    report = study(experiment("one"))
    assert report["alone"] == report["untrained"]["user_mean"] and report["together"] == report["user_mean"]
    assert set(report["centralised"]) == {"recall@20", "ndcg@20"} and left_out(report) == []
    for figures in report["floors"].values():
        assert {name: figures[name] for name in report["client_mean"]} == figures["client_mean"]
        assert set(figures["user_mean"]) == set(report["user_mean"])
    again = study(experiment("two"))
    assert counted == ["client-1", "client-2"]
    assert all(again[name] == report[name] for name in ("alone", "together", "centralised", "floors", "digest"))


def test_without_floors_there_are_none_and_the_report_says_so(
    experiment: Callable[..., Experiment], counted: list[str]
) -> None:
    report = study(experiment("one"), floors=False)
    assert (report["floors"], report["floors_by_client"]) == ({}, {}) and counted == []
    assert report["alone"] is report["untrained"] is report["centralised"] is None
    assert report["together"] == report["user_mean"] and "left out" in report["notes"][0]


@pytest.mark.parametrize("missing", ["valid", "test"])
def test_a_silo_without_validation_or_test_pairs_is_trained_and_named(
    missing: str, experiment: Callable[..., Experiment]
) -> None:
    described = experiment("one")
    path = described.shards[1]
    shard = load_shard(path)
    write_shard(path, path.name, shard.events_with_ids().filter(pl.col("split") != missing), shard.items_with_ids())
    outcomes = [simulate_experiment(described, ignore_progress)]
    report = run_study(described, lambda *_: outcomes[0], edges_kept=None, shown=False)
    full, bare = report["clients"]
    assert [any(note.startswith(f"client-{n}: ") for note in report["notes"]) for n in (1, 2)] == [False, True]
    if missing == "valid":
        assert (bare["valid_users"], bare["best_round"]) == (0, 0) and full["valid_users"] == 16
        assert "No validation items" in report["notes"][0]
        assert [UNJUDGED in outcomes[0].statuses[f"client-{n}"].warnings for n in (1, 2)] == [False, True]
    else:
        assert bare["ndcg@20"] is None and bare["few_test_users"]
        assert report["client_mean"]["ndcg@20"] == report["user_mean"]["ndcg@20"] == full["ndcg@20"]
        assert report["floors"]["ease"]["client_mean"] == report["floors_by_client"]["client-1"]["ease"]
        assert report["floors_by_client"]["client-2"]["ease"] == {"recall@20": None, "ndcg@20": None}
