"""Task of a silo as a record of functions: what it does with its data.

Agent, training run, pages and reports call the record; none of them knows a task by its name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, Protocol, TypeVar

import torch
from torch import Tensor, nn

from client_service.compiled.model import UNFITTED, Relevance
from client_service.compiled.publication import SERVING
from client_service.evaluation.metrics import MeasureLabel, Measures
from client_service.event_log.database import FOLDER
from client_service.event_log.log_store import MergeResult
from client_service.event_log.service import SiloLog
from client_service.model_store.model_files import ModelHead
from client_service.model_store.model_server import FrozenModel
from client_service.models.initial_filter import Filter
from client_service.models.parameter_transfer import ShardRows
from client_service.models.score_fusion import Recipe
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.serving.model_server import ModelServer
from client_service.settings import ClientSettings
from client_service.sums.content import ContentStatistics
from client_service.sums.silo_sum import Statistics
from client_service.tasks.page_texts import Nouns, Question, Trial
from client_service.training.trainer import Figures
from client_service.training.training_state import RoundContext, TrainingState
from shared.errors import SettingsError
from shared.files import make_private_folder
from shared.method.declaration import Counts
from shared.method.graph import Float64
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient


@dataclass(frozen=True)
class RunContext:
    """Context of a training run: client, run, seed, settings, and folder of its models.

    kind: the strategy's model, "" for that of the settings. cache: folder for what follows from the shard alone;
    None: the models' folder. basis: the common basis that the run uses. content: the content sums that the silo
    keeps. versions: number of runs whose models are kept. number: suffix of their versions, see `find_run_number`; 0:
    none. fit_everything: is the answering model fitted again on all of the silo's data? broadcasts: names of the
    tensors that come beside the model's (`Strategy.broadcasts`).
    """

    client: str
    run: str
    seed: int
    method: MethodSettings
    folder: Path
    kind: str = ""
    cache: Path | None = None
    basis: Statistics | None = None
    content: ContentStatistics | None = None
    versions: int = 3
    number: int = 0
    fit_everything: bool = False
    broadcasts: tuple[str, ...] = ()


class TaskShard(Protocol):
    """Data of a silo, with digests of what models and answers follow from."""

    @property
    def digest(self) -> str: ...
    @property
    def lists_digest(self) -> str: ...


class Training(LocalClient, Protocol):
    """Model in training on a shard: functions of a strategy, and of a restart.

    `start` and `recipe` are the choices that validation made before the first round, if any; `basis` is the digest of
    the common basis, and `content` that of the content sums, "" where there are none.
    """

    context: RoundContext
    figures: Figures
    received: Parameters
    start: Filter | None
    recipe: Recipe | None
    basis: str
    content: str

    @property
    def model(self) -> nn.Module: ...
    def initialise(self, seed: int) -> None: ...
    def state(self) -> TrainingState: ...
    def fits(self, state: TrainingState) -> bool: ...
    def restore(self, state: TrainingState) -> None: ...
    def transfer(self, trained: Mapping[str, Tensor], old: ShardRows) -> bool: ...
    def comparable_kernels(self) -> tuple[Float64, Float64] | None: ...


class OpenedTask(NamedTuple):
    """Model server of a task without a model yet, and its event log.

    feedback: None if applications cannot post to this task.
    """

    answers: ModelServer
    feedback: SiloLog[Any, Any] | None


class Reopened(NamedTuple):
    """Model server of a changed shard, without a model yet.

    overlay: changes of the event log to its answers. failure: returns the error of publishing, or None.
    """

    answers: ModelServer
    overlay: Any
    failure: Callable[[], Exception | None]


Refitted = Callable[[ModelHead, Mapping[str, Tensor]], Any]
"""(head of a kept model, its parameters) -> the model at rest that answers. Slow."""

S = TypeVar("S", bound=TaskShard)
T = TypeVar("T", bound=Training)


@dataclass(frozen=True)
class ModelStart(Generic[S, T]):
    """Functions that begin or rebuild a model from more than a shard and settings.

    begin: a model where its run begins, and fields of QualityOut that are known by then. rebuild: a model as a kept one
    was, before its parameters are loaded.
    """

    begin: Callable[[RunContext, S, torch.device, Interrupt], tuple[T, dict[str, Any]]]
    rebuild: Callable[[ModelHead, S, Path, torch.device], T]


MakeTrainer = Callable[[S, MethodSettings, torch.device, Interrupt, str], T]
"""(shard, settings of a run, device, interrupt, name of the model; "": that of the settings) -> trainer. Slow work ends
with Interrupted."""


@dataclass(frozen=True)
class Refitting(Generic[S]):
    """Functions that fit kept models again on all of a silo's data.

    include_all_data: (shard) -> the shard with all of its data for training. refit: (shard, folder of models, device)
    -> a function that makes the answering model of a kept model's head and parameters.
    """

    include_all_data: Callable[[S], S]
    refit: Callable[[S, Path, torch.device], Refitted]


@dataclass(frozen=True)
class EventIntake(Generic[S]):
    """Functions that take applications' events into answers, and at a refresh into the shard.

    open: opens the model server, and the log that takes events. hold: locks and loads the shard of a folder. merge:
    (settings, shard, the log's store) -> the next shard. place: adds to a shard what a run needs beside its files.
    save: writes a shard into a folder. reopen: opens the model server of another shard.
    """

    open: Callable[[ClientSettings, S], OpenedTask]
    hold: Callable[[Path], AbstractContextManager[S]]
    merge: Callable[[ClientSettings, S, Any], MergeResult[S]]
    place: Callable[[ClientSettings, S], S]
    save: Callable[[Path, S], object]
    reopen: Callable[[ClientSettings, S], Reopened]


def freeze_model(version: str, training: Training) -> FrozenModel:
    """Copies the model as it is now."""
    return FrozenModel(version, copy.deepcopy(training.model).requires_grad_(False))


def _no_text(shard: TaskShard) -> str:
    del shard
    return ""


def _no_rows(shard: TaskShard) -> ShardRows:
    del shard
    return ShardRows((), ())


@dataclass(frozen=True)
class Task(Generic[S, T]):
    """One thing that can be learnt from a shard.

    A task leaves out a field with a default if it has no such thing.

    nouns: names of the numbers that the silo's page counts. labels: the page's names of measures; `primary` is the
    measure by which validation chooses, unless a shard's `Measures` name another.
    load_shard: loads the shard of a client's settings; DataError if it cannot be used.
    count: counts the users, items and edges of a shard, for a silo whose policy gives these numbers.
    trainer: makes a model in training on a shard.
    judge, test: measure a frozen model on validation data, and on test data, which no choice may depend on.
    count_judged: counts the validation examples by which a model is judged.
    answer: opens the model server of a silo without a service around it.
    publish: compiles a shard into the given folder, and opens its model server there; by default `answer`.
    try_out: answers a question that was typed on the silo's page.

    freeze: copies the model, under a version, as one that answers and does not change.
    rows: lists the ids of a shard's rows, for models with a row for each user or item.
    fits_at_start: does a model answer well before any training, as closed forms do?
    text_digest: computes the digest of item metadata that the shard's `digest` leaves out; "" if there is none.
    relate: fits the meaning of a frozen model's scores on validation data; without it they are taken as they are.
    summarise: returns the fields of QualityOut that are known after training, of the served model and the training.
    refitting, events: see their classes. If they are left out, what needs them is refused.
    """

    name: str
    labels: Mapping[str, MeasureLabel]
    primary: str
    nouns: Nouns
    load_shard: Callable[[ClientSettings], S]
    count: Callable[[S], Counts]
    count_judged: Callable[[S], int]
    trainer: MakeTrainer[S, T] | ModelStart[S, T]
    judge: Callable[[S, Any, Interrupt], Measures]
    test: Callable[[S, Any, Interrupt], Measures]
    answer: Callable[[S], ModelServer]
    try_out: Callable[[Question, Any], Trial]
    freeze: Callable[[str, T], Any] = freeze_model
    rows: Callable[[S], ShardRows] = _no_rows
    text_digest: Callable[[S], str] = _no_text
    relate: Callable[[S, Any, Interrupt], Relevance] | None = None
    summarise: Callable[[RunContext, S, Any, T, Interrupt], dict[str, Any]] | None = None
    refitting: Refitting[S] | None = None
    events: EventIntake[S] | None = None
    publish: Callable[[S, Path], ModelServer] | None = None
    fits_at_start: bool = False

    def read(self, settings: ClientSettings) -> S:
        """Reads the silo's shard. SettingsError for a setting that this task has no use for."""
        if settings.fit_everything and self.refitting is None:
            self._refuse_refit()
        if self.events is None:
            for name in ("refresh_seconds", "refresh_interactions"):
                if (value := getattr(settings, name)) is not None:
                    self._refuse(name, "none", "events", f"{value:g}")
        return self.load_shard(settings)

    def begin(
        self, context: RunContext, shard: S, device: torch.device, interrupt: Interrupt
    ) -> tuple[T, dict[str, Any]]:
        """Starts a model, with the fields of QualityOut that are known by then."""
        known = {**self.count(shard).model_dump(), "valid_users": self.count_judged(shard)}
        if isinstance(self.trainer, ModelStart):
            training, more = self.trainer.begin(context, shard, device, interrupt)
            return training, {**known, **more}
        return self.trainer(shard, context.method, device, interrupt, context.kind), known

    def rebuild(self, head: ModelHead, shard: S, folder: Path, device: torch.device) -> T:
        """Rebuilds the model of a kept one's head, before its parameters are loaded."""
        if isinstance(self.trainer, ModelStart):
            return self.trainer.rebuild(head, shard, folder, device)
        return self.trainer(shard, head.method, device, NEVER, head.kind)

    def include_all_data(self, shard: S) -> S:
        """Returns the shard with all of its data for training.

        Raises SettingsError for a task without refitting.
        """
        if self.refitting is None:
            self._refuse_refit()
        return self.refitting.include_all_data(shard)

    def refit(self, shard: S, folder: Path, device: torch.device) -> Refitted:
        """Prepares refits of a shard's kept models. SettingsError for a task without refitting."""
        if self.refitting is None:
            self._refuse_refit()
        return self.refitting.refit(shard, folder, device)

    def meaning_of_scores(self, shard: S, served: Any, interrupt: Interrupt) -> Relevance:
        """Fits the meaning of a frozen model's scores on validation data."""
        return UNFITTED if self.relate is None else self.relate(shard, served, interrupt)

    def open(self, settings: ClientSettings, shard: S) -> OpenedTask:
        """Opens answers and, where the task takes events, their log."""
        if self.events is not None:
            return self.events.open(settings, shard)
        make_private_folder(settings.state_directory / FOLDER)  # a server process mounts this folder, so it must exist
        answers = (
            self.answer(shard) if self.publish is None else self.publish(shard, settings.state_directory / SERVING)
        )
        return OpenedTask(answers, None)

    def _refuse_refit(self) -> NoReturn:
        self._refuse("fit_everything", "false", "models that can be fitted again", "true")

    def _refuse(self, setting: str, expected: str, missing: str, got: str) -> NoReturn:
        raise SettingsError(
            f"{setting}: expected {expected} with task {self.name!r}, which has no {missing}, got {got}"
        )
