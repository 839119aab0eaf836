"""Three banks with tables of accounts and transfers: the commands of docs/nodes.md, each as a process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import polars as pl
import pytest

from client_service.data.node_graphs import UNKNOWN, NodeShard
from simulation.graphs.cut import select_nodes
from simulation.graphs.generator import GraphSizes, generate_graph
from simulation.ports import free_ports
from tests.support.questions import LONGEST_SECONDS

BANKS = ("bank-1", "bank-2", "bank-3")
COUNTRIES = ("AT", "DE", "FR")


def write_banks(folder: Path) -> None:
    """A folder a bank: accounts with a country beside their habits, transfers between them and to other banks."""
    graph, cut = generate_graph(0, len(BANKS), GraphSizes(accounts=300, homophily=(0.9, 0.8, 0.6)))
    for name, nodes in zip(BANKS, cut.nodes, strict=True):
        (folder / name).mkdir()
        write_tables(folder / name, select_nodes(graph, name, nodes))
    columns = [*graph.feature_names, *(f"country={country}" for country in COUNTRIES)]
    shared = {"features": columns, "classes": list(graph.classes)}
    (folder / "columns.json").write_text(json.dumps(shared), encoding="utf-8")


def write_tables(folder: Path, bank: NodeShard) -> None:
    """nodes.csv between semicolons, with decimal commas, and edges.csv."""
    labels = [None if label == UNKNOWN else bank.classes[label] for label in bank.labels.tolist()]
    habits = pl.DataFrame(bank.dense_features, schema=list(bank.feature_names)).select(
        pl.all().round(4).cast(pl.String).str.replace(".", ",", literal=True)
    )
    countries = [COUNTRIES[place % len(COUNTRIES)] for place in range(len(labels))]
    nodes = pl.DataFrame({"account": bank.node_ids, "label": labels, "country": countries})
    nodes.hstack(habits).write_csv(folder / "nodes.csv", separator=";")
    sources, targets, _ = bank.list_edges()
    ids = pl.Series(bank.node_ids)
    inside = pl.DataFrame({"from": ids.gather(sources), "to": ids.gather(targets)})
    assert bank.foreign is not None
    outside = bank.foreign.list_edges(bank.node_ids).select(pl.col("node").alias("from"), pl.col("foreign").alias("to"))
    pl.concat([inside, outside]).write_csv(folder / "edges.csv")


class Terminal:
    """A shell in one folder. Services that a command leaves behind are ended with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.left = folder, list[int]()

    def lpsfed(self, *words: object, fails: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "simulation.cli", *map(str, words)],
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_SECONDS,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        self.left += map(int, re.findall(r"until `kill (\d+)`", done.stderr))
        assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
        return done

    def close(self) -> None:
        for pid in self.left:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    shell = Terminal(tmp_path)
    try:
        yield shell
    finally:
        shell.close()


@pytest.mark.processes
def test_three_banks_join_with_their_own_tables_and_are_told_what_it_brought(
    terminal: Terminal, tmp_path: Path
) -> None:
    write_banks(tmp_path)
    port, *ports = free_ports(4)
    invited = [word for name in BANKS for word in ("--invite", name)]
    begin = ("aggregator", "--state-directory", "operator", "--port", port)
    said = terminal.lpsfed(*begin, "--nodes", "columns.json", *invited, "--detach").stderr
    assert "this federation shares sums, masked" in said

    kept = (tmp_path / "bank-1" / "nodes.csv").read_text("utf-8")
    (tmp_path / "bank-1" / "nodes.csv").write_text(kept.replace("habit-03", "hobby-03", 1), encoding="utf-8")
    folder = ("--folder", "silo-1")
    refused = terminal.lpsfed("join", "bank-1.invite", "--data", "bank-1", "--accept", "sums", *folder, fails=True)
    assert "expected the columns of features that all silos share, got none for habit-03" in refused.stderr
    (tmp_path / "bank-1" / "nodes.csv").write_text(kept, encoding="utf-8")

    for number, name in enumerate(BANKS, 1):
        files = ("--data", name) if number == 1 else ("--data", f"{name}/nodes.csv", "--edges", f"{name}/edges.csv")
        joined = terminal.lpsfed(
            *("join", f"{name}.invite", *files, "--folder", f"silo-{number}"),
            *("--accept", "sums", "--port", ports[number - 1], "--detach"),
        )
        assert "300 nodes" in joined.stderr and "27 features, 2 classes" in joined.stderr
        assert "how these features go together with each class" in joined.stderr
        assert "p1-" not in joined.stderr and "p2-" not in joined.stderr
    silos = [word for number in range(1, 4) for word in ("--silo", f"silo-{number}/silo.toml")]
    as_operator = ("--operator-token-file", "operator/operator.token", "--aggregator-url", f"http://127.0.0.1:{port}")
    done = terminal.lpsfed("run", "--clients", 3, *as_operator, *silos)
    told = done.stdout.splitlines()
    assert [line.split(":")[0] for line in told] == list(BANKS)
    assert all(re.search(r"AUC alone \d\.\d+, together \d\.\d+, x .* evaluated nodes", line) for line in told), told

    key = (tmp_path / "silo-1" / "application.key").read_text("ascii").strip()
    unknown = pl.read_csv(tmp_path / "bank-1" / "nodes.csv", separator=";").filter(pl.col("label").is_null())
    answer = httpx.post(
        f"http://127.0.0.1:{ports[0]}/v1/labels",
        json={"nodes": [unknown["account"][0]]},
        headers={"Authorization": f"Bearer {key}"},
        timeout=LONGEST_SECONDS,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    [label] = answer.json()["results"]
    assert label["label"] in ("honest", "fraud")
    assert np.isclose(sum(label["probabilities"].values()), 1.0)
    for number in range(1, 4):
        entries = (tmp_path / f"silo-{number}" / "state" / "ledger.jsonl").read_text("utf-8").splitlines()
        updates = [entry for entry in map(json.loads, entries) if entry.get("call") == "update"]
        assert [[one["name"] for one in entry["tensors"]] for entry in updates] == [["nodes.gram", "nodes.labels"]]
        assert not any(entry["scalars"] for entry in updates)
