"""The same federation as a Flower app in Flower's simulation: every silo and the server end with the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_service.figures import kept_quality
from simulation.engines.plain import conduct_plainly
from simulation.experiment import Experiment
from simulation.federation import ignore_progress

pytest.importorskip("flwr", reason="needs the environment that `make engines` makes")
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("default")]  # Flower's own warnings are not ours
Described = Callable[..., Experiment]


def flatten_settings(values: dict[str, Any], start: str = "") -> dict[str, Any]:
    """By dotted names, as a command line has them."""
    nested = {name: value for name, value in values.items() if isinstance(value, dict)}
    flat = {start + name: value for name, value in values.items() if name not in nested}
    return flat | {k: v for name, inner in nested.items() for k, v in flatten_settings(inner, f"{name}.").items()}


def simulate_app(described: Experiment, folder: Path) -> None:
    """The app over virtual nodes, one for each shard."""
    from flwr.simulation import run_simulation

    from simulation.flower.client_app import make_client_app
    from simulation.flower.server_app import make_server_app

    method = flatten_settings(described.method.model_dump(exclude_defaults=True))
    shards = described.shards[0].parent
    run = {
        "strategy": described.strategy,
        "rounds": described.rounds,
        "seed": described.seed,
        "clients": len(described.shards),
        "folder": str(folder / "server"),
        "set": " ".join(f"{name}={value}" for name, value in method.items()),
    }
    own = {"shards": str(shards), "states": str(folder / "silos")}
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(make_server_app(run), make_client_app(own), len(described.shards), backend_config=resources)


@pytest.mark.parametrize("strategy", ["lpsfed", "fedavg"])
def test_parameters_are_those_of_our_own_aggregation(experiment: Described, tmp_path: Path, strategy: str) -> None:
    own = conduct_plainly(experiment("own", strategy=strategy), ignore_progress)
    simulate_app(experiment("flower", strategy=strategy), tmp_path / "flower")
    found = {name: kept_quality(tmp_path / "flower" / "silos" / name / "model", name) for name in own.statuses}
    assert {name: one.shared_digest for name, one in found.items()} == {
        name: one.shared_digest for name, one in own.statuses.items()
    }
    assert {name: one.test for name, one in found.items()} == {name: one.test for name, one in own.qualities.items()}
    here, there = (
        json.loads((folder / "engine" / "run-1.json").read_text())
        for folder in (tmp_path / "own", tmp_path / "flower" / "server")
    )
    assert here["state"] == there["state"] and len(here["state"]) == 64
