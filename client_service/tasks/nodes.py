"""Task of node labels: a model tells the classes of unlabelled nodes of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from client_service.compilation.folder_publisher import FolderPublisher
from client_service.compilation.nodes import compile_nodes_in_memory, publish_nodes
from client_service.compiled.publication import SERVING
from client_service.data.node_files import load_node_shard, save_node_shard
from client_service.data.node_graphs import TEST, TRAIN, UNKNOWN, UNLABELLED, VALID, NodeShard
from client_service.evaluation.metrics import Measures
from client_service.evaluation.node_measures import ACCURACY, NODE_LABELS, choose_primary, measure_nodes
from client_service.event_log.log_store import MergeResult
from client_service.event_log.node_log import open_node_log
from client_service.event_log.node_store import NodeStore
from client_service.event_log.node_update import lock_node_shard, merge_nodes_into_shard
from client_service.joining_value.node_comparison import compare_nodes, describe_graph
from client_service.model_store.model_files import ModelHead, copy_parameters
from client_service.model_store.node_models import ServedNodes, freeze_nodes
from client_service.model_store.refitting import load_model_basis
from client_service.runtime.interruption import Interrupt
from client_service.runtime.logs import LOGGER
from client_service.serving.node_labels import NodeLabels
from client_service.settings import ClientSettings
from client_service.sums.node_gram import SummedGram
from client_service.sums.storage import FOLDER, complete_shard
from client_service.tasks.page_texts import NODES as NOUNS
from client_service.tasks.page_texts import try_node
from client_service.tasks.task import EventIntake, ModelStart, OpenedTask, Refitting, Reopened, RunContext, Task
from client_service.training.node_trainer import NodeTrainer, complete_sizes
from shared.method.declaration import Counts


def load_nodes(settings: ClientSettings) -> NodeShard:
    """Loads the shard of a client's settings, completed by border sums.

    DataError for files of no use, SettingsError for other sizes than all share.
    """
    return complete_nodes(settings, load_node_shard(settings.shard))


def complete_nodes(settings: ClientSettings, shard: NodeShard) -> NodeShard:
    """Completes a loaded or unwritten shard by border sums, under the client's name."""
    shard = replace(shard, name=settings.name)
    complete_sizes(shard, settings.method.nodes)
    return cast(NodeShard, complete_shard(settings.state_directory / FOLDER, settings.method, shard))


def count_nodes(shard: NodeShard) -> Counts:
    """Counts nodes as users, and columns of features as items."""
    return Counts(users=len(shard.node_ids), items=len(shard.feature_names), edges=max(1, shard.edges))


def count_judged(shard: NodeShard) -> int:
    """Counts the validation nodes that judge a model."""
    return len(shard.nodes_of(VALID))


def measure_split(split: int, shard: NodeShard, served: ServedNodes) -> Measures:
    """Measures accuracy and area under the curve over the nodes of a split."""
    rows = shard.nodes_of(split)
    return measure_nodes(served.probabilities[rows], shard.labels[rows])


def judge_validation(shard: NodeShard, served: ServedNodes, interrupt: Interrupt) -> Measures:
    """Measures a model on validation nodes."""
    del interrupt
    return measure_split(VALID, shard, served)


def judge_test(shard: NodeShard, served: ServedNodes, interrupt: Interrupt) -> Measures:
    """Measures a model on test nodes."""
    del interrupt
    return measure_split(TEST, shard, served)


def begin_training(
    place: RunContext, shard: NodeShard, device: torch.device, interrupt: Interrupt
) -> tuple[NodeTrainer, dict[str, Any]]:
    """Begins a run's model, with the closed form of what was summed."""
    training = NodeTrainer(shard, place.method, device, interrupt, place.kind)
    if isinstance(place.basis, SummedGram):
        training.add_sums(place.basis)
    return training, {"primary": choose_primary(len(shard.classes))}


def rebuild_training(head: ModelHead, shard: NodeShard, folder: Path, device: torch.device) -> NodeTrainer:
    """Rebuilds the model to which a head belongs.

    The sums lie beside its `folder`. DataError if they are missing.
    """
    training, known = NodeTrainer(shard, head.method, device, kind=head.kind), load_model_basis(folder, head)
    if isinstance(known, SummedGram):
        training.add_sums(known)
    return training


def label_all(shard: NodeShard) -> NodeShard:
    """Returns the shard with all labelled nodes for training."""
    return shard.with_splits(np.where(shard.labels == UNKNOWN, UNLABELLED, TRAIN).astype(np.int8))


class NodeRefit:
    """Refits the kept models of one shard on all of its labelled nodes.

    folder: the folder of models. A network that validation prefers answers as it was trained. The closed form is fitted
    once for all rounds of a run.
    """

    def __init__(self, shard: NodeShard, folder: Path, device: torch.device) -> None:
        self._shard, self._folder, self._device = shard, folder, device
        self._begun: tuple[tuple[object, ...], NodeTrainer] | None = None

    def __call__(self, head: ModelHead, trained: Mapping[str, torch.Tensor]) -> ServedNodes | None:
        """Refits the model of a head; None if the kept parameters do not fit.

        trained: the parameters in the head's file.
        """
        chosen = (head.method, head.kind, head.basis)
        if self._begun is None or self._begun[0] != chosen:
            self._begun = chosen, rebuild_training(head, self._shard, self._folder, self._device)
        training = self._begun[1]
        if not copy_parameters(trained, training.model):
            LOGGER.warning("model_not_refitted", reason="its parameters do not fit the network")
            return None
        return freeze_nodes(head.version, training, refitted=True)


def summarise_nodes(
    place: RunContext, shard: NodeShard, served: ServedNodes, training: NodeTrainer, interrupt: Interrupt
) -> dict[str, Any]:
    """Compares the served model with the silo's own closed form, for the silo's operator."""
    del place, training, interrupt
    return {"comparison": compare_nodes(shard, served), "graph": describe_graph(shard, served)}


def answer_nodes(shard: NodeShard, serving: Path | None = None) -> NodeLabels:
    """Compiles a node graph and opens its answers.

    serving: the folder in which it is published; None: it is compiled in memory alone.
    """
    if serving is None:
        return NodeLabels(*compile_nodes_in_memory(shard))
    return NodeLabels(*publish_nodes(shard, FolderPublisher(serving, "nodes", shard)))


def open_nodes(settings: ClientSettings, shard: NodeShard) -> OpenedTask:
    """Opens the answers beside the models, and the event log."""
    answers = answer_nodes(shard, settings.state_directory / SERVING)
    return OpenedTask(answers, open_node_log(settings, answers.overlay))


def merge_events(settings: ClientSettings, shard: NodeShard, store: NodeStore) -> MergeResult[NodeShard]:
    """Merges the event log into the shard."""
    del settings
    return merge_nodes_into_shard(shard, store)


def reopen_nodes(settings: ClientSettings, shard: NodeShard) -> Reopened:
    """Opens answers from another graph, which is published with its first model."""
    publisher = FolderPublisher(settings.state_directory / SERVING, "nodes", shard)
    answers = NodeLabels(*publish_nodes(shard, publisher, at_once=False))

    def publish_without_model() -> OSError | None:
        if answers.served is None:  # the graph before it, which may hold an erased node, must answer no more
            publisher.publish_shard()
        return publisher.failure

    return Reopened(answers, answers.overlay, publish_without_model)


NODES = Task(
    name="nodes",
    labels=NODE_LABELS,
    primary=ACCURACY,
    nouns=NOUNS,
    load_shard=load_nodes,
    count=count_nodes,
    count_judged=count_judged,
    trainer=ModelStart(begin_training, rebuild_training),
    judge=judge_validation,
    test=judge_test,
    answer=answer_nodes,
    publish=answer_nodes,
    try_out=try_node,
    freeze=freeze_nodes,
    summarise=summarise_nodes,
    refitting=Refitting(include_all_data=label_all, refit=NodeRefit),
    events=EventIntake(
        open=open_nodes,
        hold=lock_node_shard,
        merge=merge_events,
        place=complete_nodes,
        save=save_node_shard,
        reopen=reopen_nodes,
    ),
    fits_at_start=True,
)
"""Task of node labels; with two classes validation chooses by the area under the curve: see `choose_primary`."""
