"""Peers have pinned versions in environments of their own, and are told beside the project line by line."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import environments
from benchmarks.peers.serving import BASKETS, KNOWN, ServingRow, compare, render_rows, rows_of_loads
from benchmarks.speed import wrk
from benchmarks.speed.serving import as_table
from benchmarks.speed.wrk import Load, LoadTarget, Requests


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


def test_ratios_above_one_are_in_our_favour() -> None:
    ours = Load("client", "known users", 1, 1000.0, 0.5, 1.0, 2.0, 0.5, 0)
    theirs = Load("implicit", "known users", 1, 200.0, 5.0, 6.0, 7.0, 4.0, 3)
    empty = Load("empty route", "known users", 1, 2000.0, 0.1, 0.2, 0.3, 0.2, 0)
    (known,) = compare([ours, theirs, empty]).splitlines()[2:]
    assert (
        known == "| known users | 1 | 1,000.0 | 200.0 | 5.00 | 0.50, 2.00 | 5.00, 7.00 | 0.500 | 4.000 | 8.00 | 0, 3 |"
    )
    shares = [line.split(" | ")[4] for line in as_table([ours, theirs, empty]).splitlines()[2:]]
    assert shares == ["0.50", "0.10", "1.00"]


def test_of_the_turns_of_each_server_the_median_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {"client": iter([3.0, 1.0, 2.0] * 2), "empty route": iter([6.0, 9.0, 4.0] * 2)}

    def load(target: LoadTarget, requests: Requests, connections: int, _: int) -> Load:
        return Load(target.server, requests.what, connections, next(rates[target.server]), 0, 0, 0, 0, 0)

    monkeypatch.setattr(wrk, "load_target", load)
    targets = [LoadTarget(name, "http://unused", "none", 1) for name in rates]
    found = wrk.alternate_loads(targets, [Requests("known users", [])], 1)
    assert [(one.server, one.connections, one.rate) for one in found] == [
        (name, connections, rate) for connections in (1, 16) for name, rate in (("client", 2.0), ("empty route", 6.0))
    ]


def test_each_row_says_whether_it_holds() -> None:
    rows = [ServingRow("rate", 1.2, "x", 1.0, True), ServingRow("time", 1.2, "ms", 1.0), ServingRow("form", 3.0, "MB")]
    assert [one.holds for one in rows] == [True, False, None] == [one.as_json()["holds"] for one in rows]
    told = [line.split(" | ")[3:5] for line in render_rows(rows).splitlines()[2:]]
    assert told == [[">= 1", "yes"], ["<= 1", "no"], ["-", "-"]]


def test_known_users_stand_beside_the_empty_route_and_baskets_beside_implicit() -> None:
    loads = []
    for connections in (1, 16):
        for what, *rates in ((KNOWN, 300.0, 100.0, 200.0), *((one, 400.0, 200.0, 0.0) for one in BASKETS.values())):
            servers = ("client", "implicit", "empty route")
            loads += [
                Load(name, what, connections, rate, 0.5, 1.0, 4.0, 0.1, 0)
                for name, rate in zip(servers, rates, strict=True)
            ]
    found = {one.what: (one.figure, one.holds) for one in rows_of_loads(loads)}
    assert found[f"{KNOWN}, 16 connections"] == (1.5, True) and found[f"{KNOWN}, 1 connection: p99"] == (4.0, False)
    assert found[f"{BASKETS[200]}, 1"] == (2.0, True) and found[f"{BASKETS[20]}, 1: p99"] == (4.0, True)
