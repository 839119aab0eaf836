"""Every command of `benchmarks/` runs in its quick form: on a few users, for a round, in this process."""

from __future__ import annotations

import importlib
import logging
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.fedga import devices, rows
from benchmarks.guard import sizes
from tests.support.given import Silos

ROOT = Path(__file__).parents[3]
QUICK = {
    "benchmarks.attacks.borders": "{graph} --parts 3 --cut random --groups 1",
    "benchmarks.attacks.limits": "--only 'half-sent heads'",
    "benchmarks.attacks.sums": "--data {folder} --name ratings.csv --users 3 --draws 1",
    "benchmarks.fedga.devices": "{clicks} --rounds 2 --seeds 1 --methods fedavg --set width=8",
    "benchmarks.fedga.items": "{ratings} --out {out} --clients 2 --rounds 1 --trials 1 --seeds 1"
    " --strategies fedmf --servers none",
    "benchmarks.fedga.silos": "{clicks} --clients 2 --rounds 1 --methods fedavg --set width=8",
    "benchmarks.fedga.sums": "{clicks} --clients 2 --least 1 --rounds 1 --most 40",
    "benchmarks.guard.sizes": "--users 120 --items 120 --plot {out}/sizes.svg",
    "benchmarks.node_splits": "--silos 2 --accounts 60 --seeds 1",
    "benchmarks.privacy.noised_basis": "--data {folder} --name ratings.csv --silos 2 --epsilons 3",
    "benchmarks.refitted": "--data {folder} --name ratings.csv --silos 1",
    "benchmarks.sparse.mixtures": "--data {folder} --name ratings.csv --silos 3 --cut random",
    "benchmarks.sparse.parts": "--data {folder} --name ratings.csv --silos 2 --some 1 --parts ease",
    "benchmarks.sparse.sums": "--data {folder} --name ratings.csv --silos 3",
    "benchmarks.speed.basis_bytes": "--data {folder} --name ratings.csv --silos 3 --rank 4",
    "benchmarks.speed.basis_phases": "--clients 4 --items 60 --rank 8 --rounds 2",
    "benchmarks.speed.cost_model": "--clients 2 4 --megabytes 0.02 0.05 --rounds 1 --held-out 6:0.05",
    "benchmarks.speed.engines": "{ratings} --clients 3 --rounds 1 --engines plain",
    "benchmarks.speed.feedback": "{shard} --events 3 --batch 5 --batches 4 --seconds 1",
    "benchmarks.speed.first_model": "{shard}",
    "benchmarks.speed.flames": "{stacks} --out {out}/picture.svg",
    "benchmarks.speed.load_model": "--clients 3 --rounds 1 --megabytes 0.05",
    "benchmarks.speed.next_item": "--items 60 --models srgnn --asked 5",
    "benchmarks.speed.node_labels": "{graph} --asked 100 --neighbours 3",
    "benchmarks.speed.recommendation": "{shard} --requests 10",
    "benchmarks.speed.refresh": "{shard} --events 10",
    "benchmarks.speed.request_cost": "--repetitions 10",
    "benchmarks.speed.round_overhead": "--rounds 1 --clients 2",
    "benchmarks.speed.secure_round": "--clients 3 --rounds 1",
    "benchmarks.speed.secure_cost_model": "--clients 4 6 8 --held-out 10 --rounds 1",
    "benchmarks.speed.serving": "{shard} --seconds 1",
    "benchmarks.speed.session_epoch": "{clicks} --models srgnn --width 8 --batches 2",
    "benchmarks.speed.spectrum": "{ratings} --cutoffs 8",
    "benchmarks.speed.sum_updates": "--updates 4 --megabytes 0.05 --linked 2",
    "benchmarks.speed.text_requests": "--items 60 --users 60 --requests 5",
    "benchmarks.speed.training": "{shards}",
    "benchmarks.worth.run": "{shards} --silo 0",
}
"""Module -> the arguments of its quick form."""
LONG = {  # ten seconds and more: with the slow tests
    "benchmarks.fedga.items",
    "benchmarks.guard.sizes",
    "benchmarks.speed.cost_model",
    "benchmarks.speed.engines",
    "benchmarks.speed.feedback",
    "benchmarks.speed.next_item",
    "benchmarks.speed.node_labels",
    "benchmarks.speed.recommendation",
    "benchmarks.speed.round_overhead",
    "benchmarks.speed.serving",
    "benchmarks.speed.text_requests",
}

BY_OTHER_TESTS = {
    "benchmarks.__main__": "test_run.py, test_table7.py, test_table10.py, test_table11.py",
    "benchmarks.basis.adopt": "test_basis_table.py",
    "benchmarks.compare_commits.__main__": "test_compare_commits.py",
    "benchmarks.compare_commits.launch": "test_compare_commits.py",
    "benchmarks.cold.warm": "test_warm_content.py",
    "benchmarks.fedga.tables": "test_fedga.py",
    "benchmarks.fedutr.devices": "test_user_devices.py",
    "benchmarks.fedutr.run": "test_fedutr.py",
    "benchmarks.fedutr.tables": "test_fedutr.py",
    "benchmarks.harness.child": "test_run.py",
    "benchmarks.peers.environments": "test_peers.py",
    "benchmarks.peers.models": "test_peers.py",
    "benchmarks.peers.rounds": "test_peers.py",
    "benchmarks.peers.serving": "test_peers.py",
    "benchmarks.peers.inside.nvflare_round": "test_peers.py",
    "benchmarks.refreshed": "test_refreshed.py",
    "benchmarks.serving_forms": "test_serving_forms.py",
}
"""Module -> which tests call it: it needs a finished run, another commit, or another system's environment."""


def test_every_command_has_a_quick_form_or_a_test_of_its_own() -> None:
    files = [
        path for path in (ROOT / "benchmarks").rglob("*.py") if '__name__ == "__main__"' in path.read_text("utf-8")
    ]
    found = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files}
    assert found == QUICK.keys() | BY_OTHER_TESTS.keys()
    named = {name for names in BY_OTHER_TESTS.values() for name in names.split(", ")}
    assert named <= {path.name for path in (ROOT / "tests").glob("*/benchmarks/test_*.py")}


@pytest.fixture
def places(silos: Silos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """What the quick forms name, and a `wrk` that asks once; the results of the project stay as they are."""
    shards = silos(2, users=120, items=30)
    found = {"shards": shards[0].parent, "shard": shards[0], "folder": tmp_path, "out": tmp_path / "out"}
    found["out"].mkdir()
    found["stacks"] = tmp_path / "stacks"
    found["stacks"].write_text("main (main.py:1);work (work.py:2) 3\n", encoding="utf-8")
    found["clicks"], found["ratings"] = _write_clicks(tmp_path / "clicks"), _write_ratings(tmp_path / "ratings.csv")
    found["graph"] = _write_graph(tmp_path / "graph")
    monkeypatch.setattr(rows, "RESULTS", tmp_path / "results.jsonl")
    monkeypatch.setattr(sizes, "FACTORS", (0.5, 1.0))
    rows.RESULTS.touch()
    for name, value in (("EVERY", 1), ("TUNED_ROUNDS", 1), ("SAMPLE", 2)):
        monkeypatch.setattr(devices, name, value)
    program = tmp_path / "programs" / "wrk"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{WRK}", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return found


WRK = """
import os, sys, urllib.request
method, path, body = (open(os.environ["REQUESTS"]).readline().strip().split(" ", 2) + [""])[:3]
headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
asked = urllib.request.Request(sys.argv[-1] + path, data=body.encode() or None, headers=headers, method=method)
refused = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked).status != 200
print("FOUND 1 1000000", int(refused), 0, 1000, 1000, 1000)
"""


def _write_graph(folder: Path) -> Path:
    """A ring of 60 accounts, every third of them bad."""
    folder.mkdir()
    nodes = [f"a{n},{'bad' if n % 3 == 0 else 'good'},{n % 3},{n % 5}" for n in range(60)]
    edges = [f"a{n},a{(n + step) % 60}" for n in range(60) for step in (1, 3)]
    (folder / "nodes.csv").write_text("\n".join(["node,label,x,y", *nodes]), encoding="utf-8")
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]), encoding="utf-8")
    return folder


def _write_clicks(folder: Path) -> Path:
    """Sessions of a chain 0 -> 1 -> ... -> 11 -> 0."""
    sessions = [(start + np.arange(4)) % 12 for start in np.random.default_rng(0).integers(0, 12, 160)]
    folder.mkdir()
    (folder / "train_sessions.txt").write_text("\n".join(" ".join(map(str, one)) for one in sessions[:120]))
    (folder / "test.txt").write_text("\n".join(f"{one[0]} {one[1]}\t{one[2]}" for one in sessions[120:]))
    return folder


def _write_ratings(file: Path) -> Path:
    draw = np.random.default_rng(0)
    pairs = [f"u{user},i{item}" for user in range(160) for item in draw.choice(80, 10, replace=False)]
    file.write_text("\n".join(["user,item", *pairs]) + "\n", encoding="utf-8")
    return file


def _write_graph(folder: Path) -> Path:
    """Accounts in a ring, each beside the next six."""
    folder.mkdir()
    nodes = [f"a{one},{one % 7},{'bad' if one % 3 else 'fine'}" for one in range(60)]
    (folder / "nodes.csv").write_text("\n".join(["node,x,label", *nodes]) + "\n", encoding="utf-8")
    edges = [f"a{one},a{(one + step) % 60}" for one in range(60) for step in range(1, 7)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def logged() -> Iterator[None]:
    """The log is as before at the end: some benchmarks shut it off."""
    before = logging.root.manager.disable
    yield
    logging.disable(before)


@pytest.mark.processes
@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in QUICK]
)
def test_a_benchmark_s_quick_form_runs(
    name: str,
    places: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [word.format(**places) for word in shlex.split(QUICK[name])]
    monkeypatch.setattr(sys, "argv", [name, *words])
    module = importlib.import_module(name)
    main: Callable[[], object] = module.main
    if name == "benchmarks.worth.run":
        main = lambda: module.main(places["shards"], [0])  # noqa: E731
    assert main() in (None, 0)
    told = capsys.readouterr().out
    assert (told.strip() or "--out" in words) and "ended with" not in told
