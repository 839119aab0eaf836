"""A silo of nodes with `fit_everything`: choices and figures by held-out nodes, answers from all labelled ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from client_service.data.node_graphs import TEST, VALID
from client_service.federation.best_model import load_model
from client_service.federation.messages import QualityOut
from client_service.federation.run_records import load_quality
from client_service.model_store.node_models import ServedNodes
from client_service.settings import ClientSettings
from client_service.tasks.nodes import NODES
from tests.support.nodes import keep_node_model, node_silo, small_graph

CPU = torch.device("cpu")


def keep_model(folder: Path, *, everything: bool, turned: bool = False) -> ClientSettings:
    """Keeps a model of a silo. turned: have its test nodes other labels?"""
    shard = small_graph(nodes=120)
    if turned:
        shard = replace(shard, labels=np.where(shard.splits == TEST, 1 - shard.labels, shard.labels))
    return keep_node_model(node_silo(folder, shard, fit_everything=everything))


def load(settings: ClientSettings, *, everything: bool) -> ServedNodes:
    shard = NODES.read(settings)
    found = load_model(NODES, shard, settings.models_directory, CPU, fit_everything=everything)
    assert isinstance(found, ServedNodes)
    return found


def measures(settings: ClientSettings) -> QualityOut:
    found = load_quality(settings.models_directory, settings.name)
    assert found is not None
    return found


def test_what_answers_has_every_label_and_what_is_judged_has_not(tmp_path: Path) -> None:
    some = keep_model(tmp_path / "some", everything=False)
    whole = keep_model(tmp_path / "whole", everything=True)
    assert measures(whole).refitted and not measures(some).refitted
    assert measures(whole).test == measures(some).test, "the figures are of the model before the refit"
    judged, answering = load(whole, everything=False), load(whole, everything=True)
    assert np.allclose(judged.probabilities, load(some, everything=False).probabilities)
    assert answering.joining == judged.joining and answering.version == judged.version
    assert np.abs(answering.probabilities - judged.probabilities).max() > 0.01
    held = NODES.read(whole).nodes_of(VALID)
    labels = NODES.read(whole).labels[held]
    own = [one.probabilities[held, labels].mean() for one in (judged, answering)]
    assert own[1] > own[0], "it has seen them, so that it may not be judged by them"


def test_no_label_of_a_test_node_changes_what_is_judged(tmp_path: Path) -> None:
    """Only what answers follows from them."""
    one, other = (keep_model(tmp_path / name, everything=True, turned=name == "b") for name in ("a", "b"))
    assert np.allclose(*(load(silo, everything=False).probabilities for silo in (one, other)))
    assert not np.allclose(*(load(silo, everything=True).probabilities for silo in (one, other)), atol=0.01)


@pytest.mark.parametrize("kind", ["unifilter", "sage"])
def test_a_network_that_validation_prefers_answers_as_it_was_trained(tmp_path: Path, kind: str) -> None:
    settings = keep_node_model(node_silo(tmp_path, small_graph(nodes=120), model=kind, fit_everything=True))
    judged, answering = load(settings, everything=False), load(settings, everything=True)
    by_network = judged.joining.answers.startswith("network")
    assert by_network == np.allclose(judged.probabilities, answering.probabilities)
    assert answering.joining == judged.joining
