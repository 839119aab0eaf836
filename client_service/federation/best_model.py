"""Best model of a run by validation: evaluated after each round, saved, and served."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from client_service.compiled.model import UNFITTED, Relevance
from client_service.evaluation.metrics import Measures
from client_service.federation.messages import QualityOut, RoundCosts, RoundQuality
from client_service.federation.run_records import earlier_runs, load_quality, saturation_notices, save_quality
from client_service.model_store.model_files import ModelHead, load_head, load_parameters, load_tensors, name_version
from client_service.model_store.model_server import FrozenModel
from client_service.model_store.model_versions import find_version_of_run, save_version
from client_service.runtime.interruption import Interrupt
from client_service.runtime.logs import LOGGER
from client_service.serving.model_server import ModelServer
from client_service.tasks.task import Refitted, RunContext, Task, TaskShard, Training
from shared.errors import DataError

A = TypeVar("A", bound=FrozenModel)


class BestModel:
    """Best model of one run so far.

    `quality`: measures of the run; each change is on the disk before it can be read. `known`: fields of QualityOut
    that are known before the first round. refit: builds the model that answers from the one that was evaluated, where
    they differ: it was fitted on held-out data too, so that it is never evaluated.
    """

    def __init__(
        self,
        place: RunContext,
        task: Task[Any, Any],
        shard: TaskShard,
        answers: ModelServer,
        training: Training,
        interrupt: Interrupt,
        known: dict[str, Any],
        refit: Refitted | None = None,
    ) -> None:
        self.place, self._task, self._shard, self._training = place, task, shard, training
        self._answers, self._interrupt, self._refit_model = answers, interrupt, refit
        self.served: FrozenModel | None = None
        earlier = earlier_runs(load_quality(place.folder, place.client), place.run)
        refitted = {"refitted": True} if refit is not None else {}
        self.quality = QualityOut(client=place.client, run=place.run, earlier=earlier, **refitted, **known)

    @property
    def origin(self) -> dict[str, Any]:
        """Fields that identify the shard, run, method and start of a model."""
        place, training = self.place, self._training
        return {
            "shard": self._shard.digest,
            "text": self._task.text_digest(self._shard),
            "run": place.run,
            "method": place.method,
            "kind": place.kind,
            "start": training.start,
            "recipe": training.recipe,
            "basis": training.basis,
            "content": training.content,
        }

    def judge(self, costs: RoundCosts, **learnt: Any) -> None:
        """Evaluates the current model, and serves it if it is the best so far.

        costs: of the round. learnt: loss, saturated and with_margins of the round's training, if this client trained
        in it.
        """
        began = time.perf_counter()
        served = self._freeze(costs.round)
        measures = self._task.judge(self._shard, served, self._interrupt)
        best = max((entry.values[measures.primary] for entry in self.quality.rounds), default=-1.0)
        seconds = time.perf_counter() - began
        judged = RoundQuality(**dict(costs), **learnt, values=dict(measures.values), evaluate_seconds=seconds)
        update: dict[str, object] = {"rounds": (*self.quality.rounds, judged)}
        if measures.primary_value > best:
            self._keep_and_serve(served, costs.round, measures)
            update["best_round"] = costs.round
        self._update_quality(**update)

    def finish(self, failure: str | None, shared_digest: str) -> None:
        """Evaluates the best model on test data, once."""
        assert self.served is not None, "a run begins with a judged model"
        measures = self._task.test(self._shard, self.served, self._interrupt)
        summarise, known = self._task.summarise, dict[str, Any]()
        if summarise is not None:
            known = summarise(self.place, self._shard, self.served, self._training, self._interrupt)
        self._update_quality(
            test={self._task.labels[name].key: value for name, value in measures.values.items()},
            test_users=measures.users,
            finished=True,
            failure=failure,
            **known,
            shared_digest=shared_digest,
        )

    def resume(self) -> bool:
        """Loads the best saved model of this run and serves it.

        Returns False if there is none.
        """
        place, head = self.place, find_version_of_run(self.place.folder, self.place.run)
        own = (self._shard.digest, place.run, place.method, place.kind, self._training.basis, self._training.content)
        if head is None or (head.shard, head.run, head.method, head.kind, head.basis, head.content) != own:
            return False
        if not head.fits_text(self._task.text_digest(self._shard)):
            return False
        if not load_parameters(place.folder, head, self._training.model):
            return False
        served = with_head(self._task.freeze(head.version, self._training), head)
        self._serve(served, self._refit(served, head))
        return True

    def serve_current(self, number: int) -> None:
        """Serves the current model as that of round `number`, without saving it."""
        served = self._freeze(number)
        served = replace(served, relevance=self._fit_relevance(served))
        self._serve(served, self._refit(served, self._head(number, relevance=served.relevance)))

    def _freeze(self, number: int) -> FrozenModel:
        found: FrozenModel = self._task.freeze(name_version(self.place.run, number, self.place.number), self._training)
        return found

    def _fit_relevance(self, served: FrozenModel) -> Relevance:
        return self._task.meaning_of_scores(self._shard, served, self._interrupt)

    def _head(self, number: int, **known: Any) -> ModelHead:
        return ModelHead(round=number, number=self.place.number, **{"values": {}, **known}, **self.origin)

    def _refit(self, judged: FrozenModel, head: ModelHead) -> FrozenModel:
        """Returns the model that answers: refitted on all data where the silo does so."""
        if self._refit_model is None:
            return judged
        found: FrozenModel | None = self._refit_model(head, dict(self._training.model.named_parameters()))
        return judged if found is None else with_head(found, head)

    def _serve(self, judged: FrozenModel, answering: FrozenModel) -> None:
        self.served, self._answers.served = judged, answering

    def _keep_and_serve(self, served: FrozenModel, number: int, measures: Measures) -> None:
        """Saves the model, then serves it: a served model survives a restart."""
        pairs, found = self._task.count(self._shard).edges, self._fit_relevance(served)
        head = self._head(number, values=dict(measures.values), chosen_for=pairs, relevance=found)
        answering = self._refit(served, head)
        with self._answers.changing:
            rows = self._task.rows(self._shard)
            kept = save_version(self.place.folder, served.model, head, rows, self.place.versions)
            self._serve(with_head(served, kept), with_head(answering, kept))

    def _update_quality(self, **changes: object) -> None:
        quality = self.quality.model_copy(update=changes)
        save_quality(self.place.folder, quality)
        for notice in set(saturation_notices(quality)) - set(saturation_notices(self.quality)):
            LOGGER.warning("warning", reason=notice)
        self.quality = quality


def load_model(
    task: Task[Any, Any], shard: TaskShard, folder: Path, device: torch.device, *, fit_everything: bool = False
) -> FrozenModel | None:
    """Loads the saved model of an earlier process; None if none fits the shard.

    Raises DataError if its file is damaged.
    """
    head = load_head(folder)
    if head is None or head.shard != shard.digest or not head.fits_text(task.text_digest(shard)):
        return None
    return load_version(task, shard, folder, device, head, fit_everything=fit_everything)


def load_model_or_none(
    task: Task[Any, Any], shard: TaskShard, folder: Path, device: torch.device, *, fit_everything: bool = False
) -> FrozenModel | None:
    """Loads the saved model as `load_model`; logs a damaged file and returns None."""
    try:
        return load_model(task, shard, folder, device, fit_everything=fit_everything)
    except DataError as error:
        LOGGER.error("kept_model_refused", reason=str(error))
        return None


def load_version(
    task: Task[Any, Any],
    shard: TaskShard,
    folder: Path,
    device: torch.device,
    head: ModelHead,
    *,
    fit_everything: bool = False,
) -> FrozenModel:
    """Loads a saved model of this shard as it was served.

    Raises DataError if its file is damaged.
    """
    if fit_everything:
        tensors = load_tensors(folder, head)
        if tensors is None:
            raise DataError(f"{folder / head.parameters}: expected the kept model, got a damaged or other file")
        refitted: FrozenModel | None = task.refit(shard, folder, device)(head, tensors)
        if refitted is not None:
            return with_head(refitted, head)
    training = task.rebuild(head, shard, folder, device)
    if not load_parameters(folder, head, training.model):
        raise DataError(f"{folder / head.parameters}: expected the kept model, got a damaged or other file")
    found: FrozenModel = task.freeze(head.version, training)
    return with_head(found, head)


def with_head(served: A, head: ModelHead) -> A:
    """Returns the model with the time and the relevance of its head."""
    return replace(served, kept_at=head.kept_at, relevance=head.relevance or UNFITTED)
