"""Which engine a command asks for: each is offered, what one needs is told at once, a run goes on in its folder."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from shared.errors import SettingsError, UnavailableError
from simulation.cli import app
from simulation.cli.options import EngineChoice
from simulation.engines import ENGINES, choose_engine
from simulation.engines.ray_engine import RayCluster, count_hosts

SMALL = ("--rounds", "1", "--set", "width=8", "--set", "cutoff=16", "--no-floors", "--json")


def run(*arguments: str) -> Any:
    """The report of a command that must not raise."""
    done = CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
    return json.loads(done.stdout)


def test_each_engine_is_offered() -> None:
    assert [choice.value for choice in EngineChoice] == list(ENGINES)


def test_ray_that_is_not_installed_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    present = builtins.__import__

    def absent(name: str, *others: Any) -> Any:
        if name.partition(".")[0] == "ray":
            raise ImportError(name)
        return present(name, *others)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(SettingsError, match=r"pip install 'lpsfed\[ray\]'"):
        choose_engine("ray", RayCluster())


def test_a_cluster_for_another_engine_is_refused() -> None:
    with pytest.raises(SettingsError, match="expected them with --engine ray alone, got them with services"):
        run("synthetic", "--ray-cpus", "2", *SMALL)


def test_a_cluster_has_as_many_hosts_as_it_has_room_for() -> None:
    nodes = [{"CPU": 9.0, "GPU": 2.0}, {"CPU": 3.0}]
    assert count_hosts(nodes, {"num_cpus": 2, "num_gpus": 0}) == 4 + 1
    assert count_hosts(nodes, {"num_cpus": 2, "num_gpus": 1}) == 2
    with pytest.raises(UnavailableError, match="expected a node with 2 CPU, 1 GPU for a host"):
        count_hosts(nodes[1:], {"num_cpus": 2, "num_gpus": 1})


def test_the_same_command_goes_on_and_another_one_is_refused(tmp_path: Path) -> None:
    command = ("synthetic", "--clients", "2", "--engine", "plain", "--out", str(tmp_path / "one"), *SMALL)
    first = run(*command)
    written = (tmp_path / "one" / "client-1" / "model" / "quality.json").stat().st_mtime_ns
    assert run(*command)["digest"] == first["digest"]
    assert (tmp_path / "one" / "client-1" / "model" / "quality.json").stat().st_mtime_ns == written
    with pytest.raises(SettingsError, match="was begun with, got another seed"):
        run(*command, "--seed", "1")
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "other").touch()
    with pytest.raises(SettingsError, match="expected a new or empty folder, or the one of the same command"):
        run(*command[: -len(SMALL) - 1], str(tmp_path / "two"), *SMALL)
