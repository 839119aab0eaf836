"""What a silo does with its data, as a record of functions. The agent, the training run, the pages and the reports ask
the record; none of them knows a task by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from scipy import sparse
from torch import Tensor, nn

from client_service.common_basis.basis import CommonBasis
from client_service.evaluation.metrics import MeasureLabel, Measures
from client_service.event_log.service import EventLog
from client_service.models.initial_filter import Filter
from client_service.models.parameter_transfer import ShardRows
from client_service.models.relevance import Relevance
from client_service.models.score_fusion import Recipe
from client_service.runtime.interruption import Interrupt
from client_service.schemas import ComparisonOut
from client_service.serving.model_store import ModelHead
from client_service.serving.predictor import Answerer
from client_service.settings import ClientSettings
from client_service.tasks.page_texts import Nouns, Question, Trial
from client_service.training.item_trainer import Figures, RoundContext
from client_service.training.training_state import TrainingState
from shared.method.declaration import Counts
from shared.method.graph import Float64
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient


@dataclass(frozen=True)
class RunContext:
    """Where a training run belongs: the client's name, the run with its seed and settings, the folder of its models.

    kind: the strategy's model, "" the one of the settings. cache: for what the shard alone gives; None: the folder.
    basis: the common basis that the run uses. versions: models of how many runs are kept. number: that they bear
    beside the run and their round, see `numbers.number_of_run`; 0: none. fit_everything: is what answers fitted again
    on all of the silo's data? broadcasts: names of the tensors that come beside the model's (`Strategy.broadcasts`).
    """

    client: str
    run: str
    seed: int
    method: MethodSettings
    folder: Path
    kind: str = ""
    cache: Path | None = None
    basis: CommonBasis | None = None
    versions: int = 3
    number: int = 0
    fit_everything: bool = False
    broadcasts: tuple[str, ...] = ()


class SummedDigests(NamedTuple):
    """Of what a silo adds to the sums of a basis run. training: of the pairs that are counted, the same as long as they
    are; catalogue: of the list of items over which they are counted."""

    training: str
    catalogue: str


class TaskShard(Protocol):
    """A silo's data: whatever a task reads has a digest of what is learnt from it, and one of all that answers follow
    from."""

    @property
    def digest(self) -> str: ...
    @property
    def lists_digest(self) -> str: ...


class Training(LocalClient, Protocol):
    """A model in training on a shard: the verbs of a strategy, and what a restart needs.

    `start` and `recipe` are the choices that validation made before the first round, if there were any; `basis` is the
    digest of the common basis, "" where there is none.
    """

    moment: RoundContext
    figures: Figures
    received: Parameters
    start: Filter | None
    recipe: Recipe | None
    basis: str

    @property
    def model(self) -> nn.Module: ...
    def initialise(self, seed: int) -> None: ...
    def state(self) -> TrainingState: ...
    def fits(self, state: TrainingState) -> bool: ...
    def restore(self, state: TrainingState) -> None: ...


class OpenedTask(NamedTuple):
    """answers: without a model yet. feedback: None where applications tell a silo of this task nothing."""

    answers: Answerer
    feedback: EventLog | None


class ReplicaTask(NamedTuple):
    """answers: without a model yet. follow: takes up what applications have told the training process since; True once
    another shard than that of the answers has absorbed it, None where nothing could be read."""

    answers: Answerer
    follow: Callable[[], bool | None]


def follow_nothing() -> bool:
    """Where applications tell nothing."""
    return False


Refitted = Callable[[ModelHead, Mapping[str, Tensor]], Any]
"""A kept model's head and its parameters -> the model at rest that answers. Slow."""

S = TypeVar("S", bound=TaskShard)
T = TypeVar("T", bound=Training)


@dataclass(frozen=True)
class Task(Generic[S, T]):
    """One thing that can be learnt from a shard.

    nouns: what the page calls what it counts. labels: what each measure is called, by its name; `primary` is the one by
    which validation chooses.
    read: the shard of a client's settings; DataError where it is of no use.
    count: how many users, items and edges a shard has, for a silo whose policy gives these numbers.
    everything: the shard with all of its data for training. refit: for a shard and its folder of models, what makes of
    a kept model's head and parameters the model that answers in a silo that fits its models on everything.
    rows: the ids of a shard's rows. carry: take over into a model in training, on its shard, what was trained on a
    shard with other rows; False, and nothing changed, where that cannot be.
    count_in_catalogue: X_c, the training pairs over the items of a common catalogue of that size, for its sums.
    digest_summed: what is counted there, as digests.
    begin: a model where its run begins, and the fields of QualityOut that are known by then.
    rebuild: a model as a kept one was, before its parameters are loaded.
    freeze: a copy of the model, under a version, that nothing changes any more and that can answer.
    relate: what the scores of a frozen model mean, by validation data.
    judge, test: its measures on validation data, and on test data, which nothing may choose by.
    compare_alone: the served model beside popular items and what the silo has without any federation, for it alone.
    compare: the anchor's kernel and the own one as the round compared them, for the silo alone; None without an anchor.
    describe: the fields of QualityOut that are known when training is over.
    answer: who answers in a silo without a service around it.
    open: who answers, and what takes what applications tell.
    follow: who answers in another process than the one that trains.
    try_out: the answer to a question that was typed on the silo's page.
    """

    name: str
    labels: Mapping[str, MeasureLabel]
    primary: str
    nouns: Nouns
    read: Callable[[ClientSettings], S]
    count: Callable[[S], Counts]
    everything: Callable[[S], S]
    refit: Callable[[S, Path, torch.device], Refitted]
    rows: Callable[[S], ShardRows]
    carry: Callable[[T, Mapping[str, Tensor], ShardRows], bool]
    count_in_catalogue: Callable[[S, int], sparse.csr_array]
    digest_summed: Callable[[S], SummedDigests]
    begin: Callable[[RunContext, S, torch.device, Interrupt], tuple[T, dict[str, Any]]]
    rebuild: Callable[[ModelHead, S, Path, torch.device], T]
    freeze: Callable[[str, T], Any]
    relate: Callable[[S, Any, Interrupt], Relevance]
    judge: Callable[[S, Any, Interrupt], Measures]
    test: Callable[[S, Any, Interrupt], Measures]
    compare_alone: Callable[[RunContext, S, Any, Interrupt], ComparisonOut | None]
    compare: Callable[[T], tuple[Float64, Float64] | None]
    describe: Callable[[T], dict[str, Any]]
    answer: Callable[[S], Answerer]
    open: Callable[[ClientSettings, S], OpenedTask]
    follow: Callable[[ClientSettings, S], ReplicaTask]
    try_out: Callable[[Question, Any], Trial]
