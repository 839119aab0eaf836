"""Peers have pinned versions in environments of their own, and are told beside the project line by line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import environments
from benchmarks.peers.serving import compare
from benchmarks.speed.serving import Load


@pytest.mark.parametrize("name", environments.peer_names())
def test_every_version_is_pinned(name: str) -> None:
    lines = (environments.REQUIREMENTS / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert lines and [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []


def test_every_script_has_its_environment() -> None:
    """Each names it in its first lines."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in environments.INSIDE.glob("*.py")}
    named = {name: set(re.findall(r"`(\w+)`", text.split('"""')[1])) for name, text in texts.items()}
    assert texts and all(names & set(environments.peer_names()) for names in named.values())


def test_an_environment_is_made_anew_only_when_its_versions_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def create(folder: Path, **_: Any) -> None:
        made.append(folder.name)
        folder.mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(environments.venv, "create", create)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(environments, "PLACE", tmp_path / "build")
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    (tmp_path / "peer.txt").write_text("one==1\n")
    first, second = (environments.make_environment("peer") for _ in range(2))
    assert made == ["peer"] and first == second == tmp_path / "build" / "peer" / "bin" / "python"
    (tmp_path / "peer.txt").write_text("one==2\n")
    environments.make_environment("peer")
    assert made == ["peer", "peer"]


def test_ratios_above_one_are_in_our_favour_and_what_a_peer_has_not_stays_empty() -> None:
    ours = [
        Load("known users", 1, 1000.0, 0.5, 1.0, 2.0, 0.5, 0),
        Load("empty route", 1, 2000.0, 0.1, 0.2, 0.3, 0.2, 0),
    ]
    theirs = [Load("known users", 1, 200.0, 5.0, 6.0, 7.0, 4.0, 3)]
    known, empty = compare(ours, theirs).splitlines()[2:]
    assert (
        known == "| known users | 1 | 1,000.0 | 200.0 | 5.00 | 0.50, 2.00 | 5.00, 7.00 | 0.500 | 4.000 | 8.00 | 0, 3 |"
    )
    assert empty == "| empty route | 1 | 2,000.0 |  |  | 0.10, 0.30 |  | 0.200 |  |  | 0 |"
