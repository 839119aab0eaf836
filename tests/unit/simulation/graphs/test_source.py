"""Graphs as a task of the commands: generated, divided into shards, recognised, hidden, held against floors."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from client_service.data.node_files import load_node_shard, save_node_shard
from client_service.data.node_graphs import TEST, TRAIN, UNKNOWN, UNLABELLED, VALID, NodeShard
from shared.errors import DataError, SettingsError
from shared.method.node_settings import NodeSettings
from shared.method.settings import method_settings
from shared.strategies import build_strategy
from shared.strategies.agreement import declare_federation
from simulation.cli import options
from simulation.cli.serving import read_node_names
from simulation.experiments.node_floors import count_majority, pool_graphs, propagate_labels
from simulation.experiments.tasks import recognise_task, simulated_task
from simulation.graphs.cut import cut_graph, divide_graph
from simulation.graphs.generator import GraphSizes, generate_graph
from simulation.graphs.read import GraphOptions, add_shared_names, select_columns
from simulation.graphs.source import cut_node_shards, parse_graph_rules, require_summable, split_own_graph
from simulation.partitioning.sources import Cut

SMALL = GraphSizes(accounts=120, homophily=(0.95, 0.1))


def make_platforms(seed: int = 0) -> list[NodeShard]:
    return divide_graph(*generate_graph(seed, 2, SMALL))


def test_rings_are_planted_and_each_platform_has_its_own_homophily() -> None:
    graph, cut = generate_graph(3, 4, GraphSizes(accounts=400, homophily=(0.95, 0.2), labelled=1.0))
    shards = divide_graph(graph, cut)
    alike = [shard.edge_homophily() for shard in shards]
    assert min(alike[0] or 0, alike[2] or 0) > 0.85 and max(alike[1] or 1, alike[3] or 1) < 0.6
    frauds = np.flatnonzero(graph.labels == 1)
    inside = graph.adjacency[frauds][:, frauds]
    assert (np.diff(inside.indptr) >= 2).all()  # each has its two neighbours of the ring
    assert generate_graph(3, 4)[0].digest == generate_graph(3, 4)[0].digest != generate_graph(4, 4)[0].digest
    assert 0.9 < cut.kept < 1.0


def test_a_graph_is_divided_into_shards_with_a_summary(tmp_path: Path) -> None:
    cut = Cut(3, rules={"accounts": "80", "homophily": ".9/.5", "train": "0.5", "valid": "0.25"})
    shards = cut_node_shards("rings", cut, tmp_path)
    assert [path.name for path in shards.paths] == ["client-1", "client-2", "client-3"]
    found = [load_node_shard(path) for path in shards.paths]
    counts = [np.bincount(shard.splits, minlength=4) for shard in found]
    assert all(
        abs(one[TRAIN] / (len(shard.splits) - one[UNLABELLED]) - 0.5) < 0.02
        for one, shard in zip(counts, found, strict=True)
    )
    summary = json.loads((tmp_path / "partition.json").read_text())
    assert summary["method"] == "platform" and 0.8 < summary["edges_kept"] < 1
    assert recognise_task(str(tmp_path)) == recognise_task("rings") == "nodes"
    assert recognise_task("clicks") == "sessions"
    assert recognise_task("ratings.csv") == recognise_task(str(tmp_path / "nothing")) == "items"
    with pytest.raises(SettingsError, match="--split"):
        cut_node_shards("rings", replace(cut, split="time"), tmp_path)
    with pytest.raises(SettingsError, match="--scenario"):
        cut_node_shards("rings", replace(cut, scenario="chain"), tmp_path)


@pytest.mark.parametrize(
    "rules",
    [{"train": "0.9", "valid": "0.2"}, {"homophily": "2"}, {"homophily": ""}, {"accounts": "3"}, {"other": "1"}],
)
def test_rules_out_of_range_are_refused(rules: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        parse_graph_rules(rules)


def test_settings_get_the_sizes_of_the_shards_and_wide_features_their_directions(tmp_path: Path) -> None:
    task = simulated_task("nodes")
    shards = cut_node_shards("rings", Cut(2, rules={"accounts": "60"}), tmp_path).paths
    method, rounds = task.choose_method(None, "local", {})
    assert rounds == 1 and (method.model, method.basis.kind) == ("node_ridge", "node_gram")
    fitted = task.fit_method(method, shards)
    assert (fitted.nodes.features, fitted.nodes.classes, fitted.sums) == (24, 2, {})
    wide, _ = task.choose_method(None, "local", {"nodes.directions": "8"})
    assert [one.kind for one in task.fit_method(wide, shards).sums.values()] == ["node_directions"]
    off, _ = task.choose_method(None, "local", {"basis.kind": "off"})
    assert off.basis.kind == "off" and "train" not in off.strategy
    odd = load_node_shard(shards[1])
    save_node_shard(shards[1], replace(odd, feature_names=tuple(reversed(odd.feature_names))))
    with pytest.raises(SettingsError, match="same columns"):
        task.fit_method(method, shards)


def test_a_strategy_that_shares_parameters_gets_a_network_that_learns() -> None:
    task = simulated_task("nodes")
    method, rounds = task.choose_method(None, "fedavg", {})
    assert (method.model, method.learning_rate, method.basis.kind, rounds) == ("unifilter", 0.02, "off", 100)
    chosen, _ = task.choose_method(None, "fedavg", {"model": "sage", "learning_rate": "0.1"})
    assert (chosen.model, chosen.learning_rate) == ("sage", 0.1)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedper", "fedsgd"])
def test_a_model_without_tensors_is_refused_by_strategies_that_share_them(name: str) -> None:
    """Such a run would send nothing, and gain nothing."""
    method = method_settings("nodes", **{"nodes.features": 3, "nodes.classes": 2})
    with pytest.raises(SettingsError, match=f"clients of '{name}' share, got 'node_ridge', which has none: choose"):
        declare_federation(build_strategy(name, method), method, secure=False)


def test_hidden_test_labels_are_not_in_the_blind_shard(tmp_path: Path) -> None:
    shard = make_platforms()[0]
    save_node_shard(tmp_path / "shard", shard)
    simulated_task("nodes").hide_test(tmp_path / "shard", tmp_path / "blind")
    blind = load_node_shard(tmp_path / "blind")
    assert not len(blind.nodes_of(TEST)) and (blind.labels[shard.nodes_of(TEST)] == UNKNOWN).all()
    assert blind.nodes_of(VALID).tolist() == shard.nodes_of(VALID).tolist()
    assert blind.adjacency.nnz == shard.adjacency.nnz


def test_all_silos_graphs_in_one_place_are_the_graph_that_was_cut() -> None:
    graph, cut = generate_graph(1, 3, SMALL)
    pooled = pool_graphs(divide_graph(graph, cut))
    assert tuple(pooled.node_ids) == tuple(graph.node_ids)
    assert (pooled.adjacency != graph.adjacency).nnz == 0
    assert (pooled.features != graph.features).nnz == 0 and pooled.labels.tolist() == graph.labels.tolist()
    halves = divide_graph(graph, cut_graph(graph, 5, 0, "overlapping"))
    assert len(pool_graphs(halves).node_ids) == len({node for half in halves for node in half.node_ids})


def test_floors_look_at_training_labels_alone() -> None:
    shard = make_platforms()[0]
    changed = replace(shard, labels=np.where(np.isin(shard.splits, (VALID, TEST)), 1 - shard.labels, shard.labels))
    assert (count_majority(shard) == count_majority(changed)).all()
    assert (propagate_labels(shard) == propagate_labels(changed)).all()
    assert np.allclose(propagate_labels(shard).sum(1), 1.0)


def test_one_silo_s_graph_is_split_where_its_data_are_not() -> None:
    shard = make_platforms()[0]
    assert split_own_graph(shard, "bank", parse_graph_rules({})).splits.tolist() == shard.splits.tolist()
    whole = shard.with_splits(np.where(shard.labels == UNKNOWN, UNLABELLED, TRAIN).astype(np.int8))
    known = int((whole.labels != UNKNOWN).sum())
    for rules, shares in (
        ({}, (0.6, 0.2, 0.2)),
        ({"train": ".5"}, (0.5, 0.25, 0.25)),
        ({"valid": ".4"}, (0.45, 0.4, 0.15)),
        ({"train": ".2", "valid": ".3"}, (0.2, 0.3, 0.5)),
    ):
        found = split_own_graph(whole, "bank", parse_graph_rules(rules))
        assert found.name == "bank"
        for split, share in zip((TRAIN, VALID, TEST), shares, strict=True):
            assert abs(len(found.nodes_of(split)) - share * known) <= 2, rules
    with pytest.raises(SettingsError, match="train \\+ valid below 1"):
        parse_graph_rules({"train": ".6", "valid": ".4"})


@pytest.mark.parametrize(
    ("labels", "train", "valid"),
    [([0, 0, 0, 0, 0, 0, 0, 1, 1, 1], 6, 2), ([0, 0, 1], 2, 1), ([1], 1, 0), ([0] * 9, 5, 2)],
)
def test_few_labels_are_for_training_first(labels: list[int], train: int, valid: int) -> None:
    """Of ten labels, of three, of one, and of one class: each class that can be is for training and for validation."""
    shard = make_platforms()[0]
    known = np.full(len(shard.labels), UNKNOWN)
    known[: len(labels)] = labels
    found = split_own_graph(
        replace(shard, labels=known, splits=np.where(known == UNKNOWN, UNLABELLED, TRAIN).astype(np.int8)),
        "bank",
        parse_graph_rules({}),
    )
    assert (len(found.nodes_of(TRAIN)), len(found.nodes_of(VALID))) == (train, valid)
    assert set(found.labels[found.nodes_of(TRAIN)]) == set(labels)


def test_a_silo_takes_the_columns_that_all_silos_share() -> None:
    shard = make_platforms()[0]
    names = ("habit-07", "habit-02")
    found = select_columns(shard, names)
    assert found.feature_names == names and found.notes[-1].startswith("22 columns of features")
    assert (found.dense_features == shard.dense_features[:, [6, 1]]).all()
    assert select_columns(shard, ()) is shard
    with pytest.raises(DataError, match="got none for other, more"):
        select_columns(shard, ("habit-01", "other", "more"))
    said = add_shared_names(GraphOptions(), ("amount", "country=DE", "country=AT"), ("ok", "fraud"))
    assert said.values == {"country": ("DE", "AT"), "label": ("ok", "fraud")}
    with pytest.raises(SettingsError, match="the federation names"):
        add_shared_names(GraphOptions(values={"label": ("fraud", "ok")}), (), ("ok", "fraud"))


def test_names_of_columns_give_the_sizes() -> None:
    found = NodeSettings(feature_names=("a", "b", "c"), class_names=("x", "y"))
    assert (found.features, found.classes) == (3, 2)
    assert NodeSettings.model_validate(found.model_dump()) == found
    wrongs: list[dict[str, Any]] = [
        {"nodes.feature_names": ("a", "a")},
        {"nodes.feature_names": ("a",), "nodes.features": 2},
        {"nodes.class_names": ("a", "b\x1b[31m")},  # it would be printed on the terminal of who joins
    ]
    for wrong in wrongs:
        with pytest.raises(SettingsError):
            method_settings(**wrong)


@pytest.mark.parametrize(
    "content",
    ["", "[]", '{"features": ["a"]}', '{"features": 3, "classes": 2}', '{"features": ["a"], "classes": ["b"]}'],
)
def test_a_federation_of_graphs_needs_names_of_features_and_classes(content: str, tmp_path: Path) -> None:
    path = tmp_path / "columns.json"
    with pytest.raises(SettingsError, match="--nodes: expected"):
        read_node_names(path, None)
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match="--nodes: expected"):
        read_node_names(path, None)
    path.write_text(json.dumps({"features": ["Beträge"], "classes": ["ok", "fraud"], "more": 1}), encoding="utf-8")
    found = read_node_names(path, None)
    assert found["strategy"] == "local" and found["method"]["model"] == "node_ridge"
    assert found["method"]["nodes"] == {
        "features": 1,
        "classes": 2,
        "feature_names": ("Beträge",),
        "class_names": ("ok", "fraud"),
    }


def test_who_trains_networks_of_nodes_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "columns.json"
    path.write_text(json.dumps({"features": ["a"], "classes": ["ok", "fraud"]}), encoding="utf-8")
    found = read_node_names(path, "fedavg")
    assert (found["strategy"], found["method"]["model"]) == ("fedavg", "unifilter")
    monkeypatch.setenv("LPSFED_AGGREGATOR_METHOD__MODEL", "sage")
    assert "model" not in read_node_names(path, "fedavg")["method"]


def test_options_of_graphs_are_for_graphs_alone() -> None:
    flags = options.FileFlags(edges=Path("edges.csv"), values=["label=ok,fraud", "country=AT"])
    cut = options.choose_cut("nodes.csv", options.TaskName.nodes, 3, options.DivisionFlags(), flags)
    assert isinstance(cut.file_options, GraphOptions)
    assert cut.file_options.values == {"label": ("ok", "fraud"), "country": ("AT",)} and cut.edges == Path("edges.csv")
    assert options.choose_task(None, "accounts.csv", flags) is options.TaskName.nodes
    assert options.choose_task(None, "accounts.csv", options.FileFlags()) is options.TaskName.items
    with pytest.raises(SettingsError, match="with --task nodes alone"):
        options.choose_cut("nodes.csv", options.TaskName.items, 3, options.DivisionFlags(), flags)
    for wrong in ("label", "label=", "label=a,a"):
        with pytest.raises(SettingsError, match="--values"):
            options.parse_graph_options(None, None, [wrong])
    with pytest.raises(SettingsError, match="expected fields of node, label"):
        options.parse_graph_options("user=a", None, None)


def test_columns_too_large_for_the_sum_are_refused_by_name_before_anybody_joins() -> None:
    """Of a column in cents among numbers about 1, in training nodes or in their neighbours."""
    shard = make_platforms()[0]
    values = shard.dense_features.copy()
    values[:, 3] *= 1e5
    large = replace(shard, features=sparse.csr_array(values))
    method = method_settings(**{"basis.kind": "node_gram"})
    require_summable(shard, method)
    with pytest.raises(
        DataError, match=r"expected columns whose squares .*, got more in 'habit-04': give them in an"
    ) as told:
        require_summable(large, method)
    assert "p1-" not in str(told.value)
    require_summable(large, method_settings())  # nothing is summed
    require_summable(large, method_settings(**{"basis.kind": "node_gram", "nodes.directions": 8}))
    beyond = np.where((shard.splits == TRAIN)[:, None], shard.dense_features, values)
    with pytest.raises(DataError, match="got more in 'habit-04'"):
        require_summable(replace(shard, features=sparse.csr_array(beyond)), method)
