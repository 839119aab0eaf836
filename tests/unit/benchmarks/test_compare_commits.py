"""Two commits of a small repository with a command line of its own: the same is told from the different."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.compare_commits.__main__ import comparison_lines, run_complaints
from benchmarks.compare_commits.cases import Case, read_names
from benchmarks.compare_commits.facts import differing_names, read_facts
from benchmarks.compare_commits.runs import FAILED, FINISHED, REFUSED, ComparedRun, run_cases
from benchmarks.compare_commits.trees import Tree, commit_tree
from shared.strategies import STRATEGIES
from simulation.cli import app

PROJECT = '[project]\nname = "tiny"\n[project.scripts]\nlpsfed = "tiny:main"\n'
COMMAND = """
import json, pathlib, sys

def main():
    if "--secure" in sys.argv:
        print("error: not so", file=sys.stderr)
        sys.exit(2)
    if "--broken" in sys.argv:
        raise RuntimeError("broken")
    out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
    for folder in ("shards/a", "a/model", "aggregator/blobs"):
        (out / folder).mkdir(parents=True)
    (out / "shards/a/interactions.parquet").write_bytes(b"shard")
    (out / "a/model/model-run-1.1.safetensors").write_bytes(b"model")
    (out / "aggregator/blobs/1").write_bytes(STATE)
    (out / "aggregator/blobs/2").write_bytes(b"upload")
    sha256 = "ff4085ad157354dc8ea67a848e7c2270b4a19282713cf3a7ecf8e0ffbb159ed1"
    entry = {"kind": "intent", "call": "update", "round": "1", "sha256": sha256}
    (out / "a/ledger.jsonl").write_text(json.dumps(entry) + "\\n")
    names = ("edges_kept", "client_mean", "user_mean", "clients", "floors", "untrained", "floors_by_client", "bytes_up")
    (out / "report.json").write_text(json.dumps(dict.fromkeys(names, 0.5) | {"digest": "d"}))
    (out / "metrics.jsonl").write_text(json.dumps(dict.fromkeys(
        ("recall", "ndcg", "loss", "saturated", "rho", "margin", "client", "round"), 1)) + "\\n")
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits: `HEAD^`, and `HEAD`, in which one state has another byte."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    _git(folder, "init", "-q")
    for state in (b"state", b"stale"):
        (folder / "tiny.py").write_text(COMMAND + f"\n\nSTATE = {state!r}\n")
        _git(folder, "add", ".")
        _git(folder, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-qm", "one more")
    return folder


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True)


def _outcome(tree: Tree, case: Case, folder: Path) -> ComparedRun:
    return run_cases(tree, [case], folder, lambda _: None, modules=())[case.name]


def test_a_planted_change_is_named_and_nothing_else(repository: Path, tmp_path: Path) -> None:
    trees = [commit_tree(repository, commit, tmp_path / commit) for commit in ("HEAD^", "HEAD")]
    case = Case("tiny", ())
    base, head = (_outcome(tree, case, tmp_path / f"runs-{number}") for number, tree in enumerate(trees))
    again = _outcome(trees[0], case, tmp_path / "again")
    assert base.end == head.end == FINISHED
    assert differing_names(base.facts, head.facts) == ["state 1"]
    assert differing_names(base.facts, again.facts) == []
    assert any(line.endswith("DIFFERS") for line in comparison_lines({"tiny": (base, head)}))
    assert run_complaints(base, again) == []


def test_a_run_that_is_refused_or_breaks_is_told_from_one_that_finishes(repository: Path, tmp_path: Path) -> None:
    tree = commit_tree(repository, "HEAD", tmp_path / "tree")
    refused = _outcome(tree, Case("refused", ("--secure",)), tmp_path / "refused")
    broken = _outcome(tree, Case("broken", ("--broken",)), tmp_path / "broken")
    finished = _outcome(tree, Case("tiny", ()), tmp_path / "finished")
    assert (refused.end, refused.output) == (REFUSED, "error: not so")
    assert (broken.end, broken.output) == (FAILED, "RuntimeError: broken")
    assert run_complaints(refused, refused) == []
    assert run_complaints(broken, broken) and run_complaints(refused, finished)


def test_of_a_secure_run_the_states_are_compared_and_not_the_masked_updates(tmp_path: Path, repository: Path) -> None:
    tree = commit_tree(repository, "HEAD", tmp_path / "tree")
    out = tmp_path / "out"
    subprocess.run(tree.process_command("--out", str(out)), env=tree.process_environment(), check=True)
    open_facts, secure_facts = read_facts(out, secure=False), read_facts(out, secure=True)
    assert differing_names(open_facts, secure_facts) == ["update a round 1"]
    assert [name for name in secure_facts if name.startswith("state")] == ["state 1"]


def test_a_command_line_of_another_tree_is_refused(repository: Path, tmp_path: Path) -> None:
    tree = commit_tree(repository, "HEAD", tmp_path / "tree")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "pyproject.toml").write_text(PROJECT.replace("tiny:main", "json:dumps"))
    with pytest.raises(ImportError, match="expected the command line of"):
        run_cases(Tree(tree.name, tmp_path / "elsewhere"), [], tmp_path / "runs", lambda _: None, modules=())


def test_the_strategies_of_a_commit_are_read_from_either_form_of_its_help() -> None:
    """A form that is not known would leave every strategy out, and say that all is the same."""
    older = "│ --strategy  <lpsfed|fedavg|local>  [default: lpsfed] │\n│ --preset <a|b> │"
    assert read_names(older) == ["lpsfed", "fedavg", "local"]
    newer = "│ --strategy  <name>  lpsfed, fedavg, │\n│      local │\n│      [default: lpsfed] │\n│ --preset <a|b> │"
    assert read_names(newer) == ["lpsfed", "fedavg", "local"]
    assert read_names("│ --preset <a|b> │") == []
    shown = CliRunner().invoke(app, ["simulate", "--help"], env={"COLUMNS": "80"}).stdout
    assert read_names(shown) == list(STRATEGIES)
