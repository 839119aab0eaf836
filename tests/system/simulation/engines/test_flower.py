"""The same federation as a Flower app in Flower's simulation: every silo and the server end with the same bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_service.federation.run_records import load_quality
from shared.errors import PrivacyError, ProtocolError, SettingsError
from simulation.engines.rounds import RunServer
from simulation.engines.sequential import run_sequentially
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import ignore_progress

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

    method = flatten_settings(described.agreed_method.model_dump(exclude_defaults=True))
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


@pytest.mark.parametrize("strategy", ["lpsfed", "fedavg", "fedmf"])
def test_parameters_are_those_of_our_own_aggregation(experiment: Described, tmp_path: Path, strategy: str) -> None:
    own = run_sequentially(experiment("own", strategy=strategy), ignore_progress)
    simulate_app(experiment("flower", strategy=strategy), tmp_path / "flower")
    found = {name: load_quality(tmp_path / "flower" / "silos" / name / "model", name) for name in own.statuses}
    assert {name: one.shared_digest for name, one in found.items()} == {
        name: one.shared_digest for name, one in own.statuses.items()
    }
    assert {name: one.test for name, one in found.items()} == {name: one.test for name, one in own.qualities.items()}
    here, there = (
        json.loads((folder / "engine" / "run-1.json").read_text())
        for folder in (tmp_path / "own", tmp_path / "flower" / "server")
    )
    assert here["state"] == there["state"] and len(here["state"]) == 64


def ask_node(settings: Path, described: Experiment, strategy: str) -> Any:
    """The reply of a node with a settings file to the first message of a run."""
    from flwr.app import Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    from simulation.flower.client_app import app
    from simulation.flower.records import write_records

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as the runtime sets it for a process
    context = Context(1, 1, {"settings": str(settings)}, RecordDict(), {})
    request = described.run_request().model_dump(mode="json")
    words = {"run": "run-1", "request": request, "strategy": strategy, "closed": 0}
    start = RunServer(described.run_request(), strategy).start
    return app(Message(write_records(words, start), dst_node_id=1, message_type="query.begin"), context)


@pytest.fixture
def written(experiment: Described, tmp_path: Path) -> Callable[..., Path]:
    """A settings file of the first silo, as its operator writes it."""

    def write(*lines: str) -> Path:
        described = experiment("one")
        method = flatten_settings(described.method.model_dump(exclude_defaults=True))
        top = (f'name = "east"\nshard = "{described.shards[0]}"\nstate_directory = "{tmp_path / "east"}"', *lines)
        path = tmp_path / "east.toml"
        path.write_text("\n".join((*top, "[method]", *(f"{name} = {value!r}" for name, value in method.items()))))
        return path

    return write


def test_a_node_with_a_settings_file_takes_part_as_that_silo(
    experiment: Described, written: Any, tmp_path: Path
) -> None:
    from simulation.flower.records import read_words

    assert read_words(ask_node(written(), experiment("one"), "lpsfed").content) == {"applied": 0}
    assert (tmp_path / "east" / "model" / "training.safetensors").is_file()


@pytest.mark.parametrize(
    ("line", "strategy", "words"),
    [
        ("", "fedavg", "expected a run with 'lpsfed', as this silo has it, got 'fedavg'"),
        ("secure = true\ntrust_on_first_use = true", "lpsfed", "expected a silo without secure and privacy"),
        ('policy = {strategies = ["fedavg"]}', "lpsfed", "policy: expected a strategy of"),
    ],
)
def test_a_silo_that_asks_for_more_than_the_app_gives_takes_no_part(
    experiment: Described, written: Any, line: str, strategy: str, words: str
) -> None:
    with pytest.raises(PrivacyError, match=words):
        ask_node(written(line), experiment("one"), strategy)


def test_a_message_of_another_app_and_a_setting_that_is_unknown_are_named() -> None:
    from flwr.app import RecordDict

    from simulation.flower.records import read_words
    from simulation.flower.server_app import read_app_settings

    with pytest.raises(ProtocolError, match="expected a message of this app"):
        read_words(RecordDict())
    with pytest.raises(SettingsError, match="roundz"):
        read_app_settings({"roundz": 3})
