"""Silos of visits sum transitions through both services, serve with them, and serve the same after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_service.federation.best_model import load_model
from client_service.model_store.session_models import ServedSessions
from client_service.runtime.interruption import NEVER
from client_service.sums.storage import load_basis, load_basis_head
from client_service.sums.transitions import Transitions, count_transitions
from client_service.tasks import TASKS
from shared.errors import DataError
from shared.method.settings import method_settings
from shared.sums.transitions import COUNTS, UNIT
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import simulate_experiment
from tests.support.visits import write_session_shards

LEAST = 2


def test_summed_transitions_are_masked_kept_fused_and_there_after_a_restart(tmp_path: Path) -> None:
    method = method_settings(
        "sessions", width=8, batch_size=50, **{"basis.kind": "transitions", "basis.least_pairs": LEAST}
    )
    shards = tuple(write_session_shards(tmp_path / "shards", 3))
    one = Experiment(shards, tmp_path / "run", method, "fedavg", "sessions", rounds=1, device="cpu", secure=True)
    outcome = simulate_experiment(one, lambda _: None)
    silos = [one.make_client_settings(shard, aggregator_url="http://127.0.0.1:9") for shard in shards]
    task, held = TASKS["sessions"], []
    pooled = np.sum([count_transitions(task.read(silo), one.agreed_method)[COUNTS] for silo in silos], axis=0)
    for silo in silos:
        folder, shard = silo.state_directory / "basis", task.read(silo)
        head = load_basis_head(folder)
        assert head is not None and head.run == outcome.history.request.basis
        known = load_basis(folder, head.digest)
        assert isinstance(known, Transitions) and known.counts is not None
        np.testing.assert_array_equal(known.counts, np.where(pooled <= (LEAST - 1) * UNIT, 0, pooled))
        served = load_model(task, shard, silo.models_directory, torch.device("cpu"))
        assert isinstance(served, ServedSessions) and served.transitions is not None and served.share < 1.0
        held.append(dict(task.test(shard, served, NEVER).values))
        plain = replace(served, transitions=None, share=1.0)
        assert not np.array_equal(plain.score(shard.test), served.score(shard.test))
    for silo, values in zip(silos, held, strict=True):
        quality = outcome.qualities[silo.name]
        assert quality.comparison is not None
        assert {*quality.comparison.groups[0].floors} == {"own successors", "transitions of all"}
        told = quality.test
        assert told is not None and sorted(told.values()) == pytest.approx(sorted(values.values()))
    folder = silos[0].state_directory / "basis"
    for path in folder.glob("basis-*.safetensors"):
        path.unlink()
    with pytest.raises(DataError, match="expected the common basis"):
        load_model(task, task.read(silos[0]), silos[0].models_directory, torch.device("cpu"))


def test_with_transitions_alone_no_network_leaves_and_a_silo_is_served_from_the_sum(tmp_path: Path) -> None:
    alone = {"strategy.train": False, "strategy.send": False}
    method = method_settings(
        "sessions", width=8, batch_size=50, **{"basis.kind": "transitions", "basis.least_pairs": LEAST, **alone}
    )
    shards = tuple(write_session_shards(tmp_path / "shards", 3))
    one = Experiment(shards, tmp_path / "run", method, "local", "sessions", rounds=1, device="cpu", secure=True)
    outcome = simulate_experiment(one, lambda _: None)
    assert outcome.history.request.part == "basis"
    task = TASKS["sessions"]
    for silo in (one.make_client_settings(shard, aggregator_url="http://127.0.0.1:9") for shard in shards):
        declared = silo.declaration()
        assert not declared.of_part("training").tensors and list(declared.sums) == ["basis"]
        quality, shard = outcome.qualities[silo.name], task.read(silo)
        assert quality.finished and quality.comparison is not None and quality.test is not None
        served = load_model(task, shard, silo.models_directory, torch.device("cpu"))
        assert isinstance(served, ServedSessions) and served.transitions is not None and served.share == 0.0
        np.testing.assert_array_equal(
            served.score(shard.test).argmax(1), served.transitions.score(shard.test).argmax(1)
        )
        group = quality.comparison.groups[0]
        assert group.alone.mean > 0 and group.federated.mean > 0 and group.ratio is not None
