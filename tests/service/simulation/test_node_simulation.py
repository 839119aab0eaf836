"""A simulation of silos of graphs through the services: what it reports, masked as in the open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simulation.cli import app

RINGS = ("rings", "--clients", "3", "--rule", "accounts=150", "--set", "nodes.random_features=8")


def simulate(out: Path, *words: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["--quiet", "simulate", *RINGS, "--out", str(out), "--json", *words])
    assert done.exit_code == 0, done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return simulate(tmp_path_factory.mktemp("rings") / "secure", "--secure")


def test_a_report_has_floors_gains_with_intervals_and_the_bytes_of_the_sum(report: dict[str, Any]) -> None:
    assert (report["task"], report["strategy"]) == ("nodes", "local")
    assert list(report["floors"]) == ["majority", "label propagation"]
    assert report["floors"]["majority"]["user_mean"]["auc"] == 0.5
    assert report["together"]["auc"] > report["alone"]["auc"] and report["centralised"] is not None
    columns = 1 + 5 * 24 + 8
    assert report["bytes_of_sums"] == {"basis": 8 * (columns * (columns + 1) // 2 + columns)}
    assert [silo["measure"] for silo in report["silos"]] == ["auc"] * 3
    for silo in report["silos"]:
        gain = silo["gain"]
        assert gain["low"] < gain["mean"] < gain["high"]
        assert gain["mean"] == pytest.approx(silo["together"]["auc"] - silo["alone"]["auc"])
    gain = report["gain"]
    assert gain["silos"] == 3 and gain["low"] < gain["mean"] < gain["high"]
    assert gain["mean"] == pytest.approx(sum(silo["gain"]["mean"] for silo in report["silos"]) / 3)


def test_masked_sums_give_what_open_ones_give(report: dict[str, Any], tmp_path: Path) -> None:
    opened = simulate(tmp_path / "open")
    assert opened["silos"] == report["silos"] and opened["together"] == report["together"]


def test_without_sums_each_silo_serves_what_it_has_alone(report: dict[str, Any], tmp_path: Path) -> None:
    alone = simulate(tmp_path / "off", "--common-basis", "off", "--rounds", "1")
    assert alone["together"] == alone["alone"] == report["alone"] and alone["bytes_of_sums"] == {}


def test_a_folder_of_shards_is_simulated_as_it_is(report: dict[str, Any], tmp_path: Path) -> None:
    shards, out = tmp_path / "shards", tmp_path / "out"
    cut = ["partition", *RINGS[:5], "--out", str(shards)]
    assert CliRunner().invoke(app, ["--quiet", *cut]).exit_code == 0
    words = ["simulate", str(shards), "--set", "nodes.random_features=8", "--no-floors", "--json", "--out", str(out)]
    done = CliRunner().invoke(app, ["--quiet", *words])
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["together"] == report["together"]
    for refused in (["--edges", "edges.csv"], ["--values", "label=a,b"], ["--columns", "label=y"]):
        done = CliRunner().invoke(app, ["--quiet", "simulate", str(shards), *refused])
        assert "expected none with a folder of shards" in str(done.exception)
