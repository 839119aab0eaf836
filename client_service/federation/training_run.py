"""Training run of a client: trains, applies each round and evaluates, without network calls."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from client_service.federation.best_model import BestModel
from client_service.federation.checkpoint import Recovery
from client_service.federation.messages import QualityOut, RoundCosts, SpectrumOut
from client_service.federation.run_records import load_spectra, save_spectra
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.serving.model_server import ModelServer
from client_service.sums.silo_sum import SummedDigests
from client_service.tasks.task import RunContext, Task, TaskShard, Training
from client_service.training.training_state import RoundContext, StrategyTensors
from shared.method.declaration import Part
from shared.method.parameters import Arrays, Parameters, digest_arrays
from shared.strategies.strategy import Strategy, split_broadcasts


@dataclass(frozen=True)
class Fitted:
    """Result of a round's training: update, seconds, and the client memory it leaves."""

    round: int
    update: Parameters
    seconds: float
    memory: Arrays


class TrainingRun:
    """Model of one run in training.

    Its methods are slow, belong in a worker thread, and end early with Interrupted; the disk is then as it was.
    `quality` and `spectrum` may be read at any time. `applied`: the last round applied.
    """

    part: Part = "training"
    summed: SummedDigests | None = None

    def __init__(
        self,
        place: RunContext,
        task: Task[Any, Any],
        shard: TaskShard,
        answers: ModelServer,
        device: torch.device,
        interrupt: Interrupt = NEVER,
    ) -> None:
        self.place = place
        training, known = task.begin(place, shard, device, interrupt)
        self._training: Training = training
        refit = task.refit(shard, place.folder, device) if place.fit_everything else None
        self._best = BestModel(place, task, shard, answers, training, interrupt, known, refit)
        self._tensors = StrategyTensors()
        self._recovery = Recovery(place, training, self._best, self._tensors)
        self._fitted: Fitted | None = None  # until the round's parameters are applied: nothing is trained twice
        self._resumed = False  # from a checkpoint, with no round applied since
        self.applied = 0
        self.spectrum = load_spectra(place.folder)

    @property
    def quality(self) -> QualityOut:
        """Measures of this run so far."""
        return self._best.quality

    @property
    def finished(self) -> bool:
        """True if the run is evaluated."""
        return self.quality.finished

    @property
    def received(self) -> Parameters:
        """Latest parameters of the aggregator."""
        received, broadcast = self._training.received, self._tensors.broadcast
        return Parameters({**received.arrays, **broadcast}, received.scalars) if broadcast else received

    @property
    def context(self) -> RoundContext:
        """Context of the round that was trained last."""
        return self._training.context

    @property
    def shared_digest(self) -> str:
        """sha256 over the current values of what could be shared."""
        return digest_arrays(self._training.arrays())

    def resume(self, closed: int) -> bool:
        """Continues this run of an earlier process: see `Recovery.resume`."""
        number = self._recovery.resume(closed)
        if number is None:
            return False
        self.applied, self._resumed = number, True
        return True

    def begin(self, received: Parameters, number: int) -> None:
        """Applies and serves the run's parameters after round `number`; 0: the initial ones."""
        self._training.initialise(self.place.seed)
        if number > 0:  # 0 begins a run, and models of an earlier run of the same name do not count
            self._recovery.resume_from_best(number)
        self.skip_round(received, number)

    def skip_round(self, received: Parameters, number: int) -> None:
        """Applies a round in which this client did not train."""
        self._load(received)
        self._best.judge(RoundCosts(round=number))
        self._complete_round(number)

    def missing_round(self, number: int) -> None:
        """Returns None: training needs no earlier rounds."""
        del number

    def store_received(self, received: Parameters, number: int) -> None:
        """Does nothing: training needs no earlier rounds."""

    def has_trained(self, number: int) -> bool:
        """Tells whether this client has trained, or may have, in the next round.

        That is the round after the applied one.
        """
        return self._resumed or (self._fitted is not None and self._fitted.round == number)

    def fit(self, strategy: Strategy, context: RoundContext, received: Parameters) -> tuple[Parameters, float]:
        """Computes the strategy's update of a round, and the seconds it took.

        A round that was trained already is not trained again: its update could not be sent, or was not answered.
        """
        if self._fitted is None or self._fitted.round != context.round:
            self._fitted = self._train(strategy, context, received)
        return self._fitted.update, self._fitted.seconds

    def save_fitted(self, number: int) -> None:
        """Saves the training of round `number`: another process may apply the round."""
        assert self._fitted is not None and self._fitted.round == number, "expected a round that was fitted"
        self._recovery.save_fitted(number, self._fitted.memory)

    def resume_fitted(self, number: int) -> bool:
        """Restores what `save_fitted` wrote, before the round is applied.

        False if no training of this round is kept.
        """
        return self._recovery.resume_fitted(number)

    def apply(self, received: Parameters, costs: RoundCosts) -> None:
        """Applies a round's personalised parameters, evaluates them, and serves the best."""
        self._load(received)
        figures = self._training.figures
        learnt = {"loss": figures.loss, "saturated": figures.saturated, "with_margins": figures.with_margins}
        self._best.judge(costs, **learnt)
        if self._fitted is not None:  # else another process fitted the round, and its memory was taken over
            self._tensors.memory = self._fitted.memory
        self._complete_round(costs.round)

    def finish(self, failure: str | None = None) -> None:
        """Tests the best model, and deletes the checkpoints."""
        if self._best.served is not None:
            self._best.finish(failure, self.shared_digest)
            self._recovery.delete()

    def _train(self, strategy: Strategy, context: RoundContext, received: Parameters) -> Fitted:
        began = time.perf_counter()
        self._training.context = context
        found = strategy.fit_round(self._training, received, self._tensors.memory)
        seconds = time.perf_counter() - began
        update = Parameters(found.arrays, found.scalars)
        self._save_spectrum(strategy.spectral_scalar, update)
        return Fitted(context.round, update, seconds, found.memory)

    def _load(self, received: Parameters) -> None:
        model, self._tensors.broadcast = split_broadcasts(received, self.place.broadcasts)
        self._training.load(model)

    def _save_spectrum(self, scalar: str | None, update: Parameters) -> None:
        """Saves the kernels that a scalar of the update compares.

        Without an anchor the last ones stay.
        """
        compared = self._training.comparable_kernels()
        if compared is not None:
            anchor, own = (tuple(kernel.tolist()) for kernel in compared)
            number, value = self._training.context.round, None if scalar is None else update.scalars.get(scalar)
            self.spectrum = SpectrumOut(run=self.place.run, round=number, own=own, anchor=anchor, rho=value)
            save_spectra(self.place.folder, self.spectrum)

    def _complete_round(self, number: int) -> None:
        """Saves the checkpoint, then completes the round.

        A crash in between leads to the same round and the same measures.
        """
        self._recovery.save(number)
        self.applied, self._fitted, self._resumed = number, None, False
