"""`python -m benchmarks nodes` on a small graph: what it prints, what stands beside, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.harness.command import main
from benchmarks.nodes.figures import compare_scores
from benchmarks.nodes.run import METHODS

SILOS = 3


def write_graph(folder: Path, nodes: int = 240) -> Path:
    """Two classes in blocks, features that tell a little, and ten official splits."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, nodes)
    ends = rng.integers(0, nodes, (6 * nodes, 2))
    kept = (labels[ends[:, 0]] == labels[ends[:, 1]]) | (rng.random(len(ends)) < 0.2)
    values = (labels[:, None] * 0.5 + rng.standard_normal((nodes, 4))).astype(np.float32)
    parts = rng.integers(0, 4, (10, nodes))
    masks = {"train_masks": parts < 2, "val_masks": parts == 2, "test_masks": parts == 3}
    path = folder / "blocks.npz"
    np.savez(path, node_features=values, node_labels=labels, edges=ends[kept], **masks)
    return path


def read_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["nodes", *words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_all_figures_of_closed_forms_stand_beside_their_floors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--parts", str(SILOS), "--seeds", "2", "--cut", "growth", "--set", "nodes.random_features=8")
    methods = [word for name in ("gram", "gram_smoothed") for word in ("--method", name)]
    found = read_json(capsys, str(write_graph(tmp_path)), *words, *methods)
    assert found["measure"] == "auc" and found["parts"] == SILOS and found["seeds"] == [0, 1]
    for name in ("alone", "alone_logistic", "centralised", "label_propagation", "popular_class"):
        assert {"mean", "deviation", "by_nodes", "accuracy", "auc"} <= found[name].keys()  # type: ignore[attr-defined]
    assert found["popular_class"]["mean"] == 0.5  # type: ignore[index]
    assert found["centralised"]["mean"] > 0.6  # type: ignore[index]
    gram = found["methods"]["gram"]  # type: ignore[index]
    assert gram["over_alone"]["silos"] == 2 * SILOS
    low, high = gram["over_alone"]["interval"]
    assert low <= gram["over_alone"]["gain"] + 0.05 and low < high
    columns = 1 + 5 * 4 + 8
    assert gram["bytes_up"] == {"mean": 8 * (columns * (columns + 1) // 2 + columns), "deviation": 0.0}


def test_official_splits_are_measured_in_one_place_and_the_table_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["nodes", str(write_graph(tmp_path)), "--official", "--set", "nodes.hops=1"]) == 0
    told = capsys.readouterr().out
    assert "blocks: 1 silo, cut: none" in told and "| centralised | 0." in told and "| gram |" not in told


def test_the_same_scores_gain_nothing_and_harm_nobody() -> None:
    rng = np.random.default_rng(0)
    tested = [(rng.random((50, 2)).astype(np.float32), rng.integers(0, 2, 50)) for _ in range(3)]
    found = compare_scores([(tested, tested)])
    assert found["gain"] == 0.0 and found["interval"] == [0.0, 0.0] and found["harmed"] == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("cora-that-is-nowhere",), "expected the file of a graph"),
        (("{graph}", "--method", "gramm"), "--method: expected some of"),
        (("{graph}", "--shares", "20/40"), "--shares: expected three percentages"),
        (("{graph}", "--parts", "0"), "at least 1 part"),
        (("{graph}", "--set", "nodes.hops"), "--set: expected NAME=VALUE"),
        (("{graph}", "--set", "nodes.hop=2"), "hop"),
        ((), "expected a graph"),
    ],
)
def test_wrong_commands_are_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str
) -> None:
    graph = str(write_graph(tmp_path))
    assert main(["nodes", *(word.replace("{graph}", graph) for word in words)]) == 2
    assert told in capsys.readouterr().err


def test_methods_have_names_of_their_own() -> None:
    assert {"alone", "gram", "gradients", "fedavg", "fedgsp", "borders"} <= METHODS.keys()
    assert all(name == one.name for name, one in METHODS.items())
