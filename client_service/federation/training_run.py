"""One run at this client: train, apply what a round gave, and be ready for the next. It never touches the network."""

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
from shared.method.parameters import Arrays, Parameters, digest
from shared.strategies.strategy import Strategy, split_broadcasts


@dataclass(frozen=True)
class Fitted:
    """What training gave a round: the update, the seconds it took, and the client memory that the round leaves."""

    round: int
    update: Parameters
    seconds: float
    memory: Arrays


class TrainingRun:
    """The model of one run. Its methods are slow, belong in a worker thread, and end early with Interrupted.

    The disk is then as it was. `quality` and `spectrum` may be read at any time. `applied`: the last round taken over.
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
        self._resumed = False  # and nothing applied since
        self.applied = 0
        self.spectrum = load_spectra(place.folder)

    @property
    def quality(self) -> QualityOut:
        """What the silo knows of this run so far."""
        return self._best.quality

    @property
    def finished(self) -> bool:
        """Is the run evaluated?"""
        return self.quality.finished

    @property
    def received(self) -> Parameters:
        """What came last from the aggregator."""
        received, broadcast = self._training.received, self._tensors.broadcast
        return Parameters({**received.arrays, **broadcast}, received.scalars) if broadcast else received

    @property
    def context(self) -> RoundContext:
        """Of the round that was trained last."""
        return self._training.context

    @property
    def shared_digest(self) -> str:
        """sha256 over what could be shared, as it is now."""
        return digest(self._training.arrays())

    def resume(self, closed: int) -> bool:
        """Go on where an earlier process was in this run, as if it had never ended: see Recovery.resume."""
        number = self._recovery.resume(closed)
        if number is None:
            return False
        self.applied, self._resumed = number, True
        return True

    def begin(self, received: Parameters, number: int) -> None:
        """Take over the run's parameters after round `number` (0: the initial ones) and serve them."""
        self._training.initialise(self.place.seed)
        if number > 0:  # at 0 a run begins, whatever had its name before
            self._recovery.resume_from_best(number)
        self.skip_round(received, number)

    def skip_round(self, received: Parameters, number: int) -> None:
        """Take over what round `number` gave, in which this client did not train."""
        self._load(received)
        self._best.judge(RoundCosts(round=number))
        self._complete_round(number)

    def missing_round(self, number: int) -> None:
        """A round's parameters are all that is needed of it."""
        del number

    def store_received(self, received: Parameters, number: int) -> None:
        """Nothing of an earlier round is needed."""

    def has_trained(self, number: int) -> bool:
        """Has this client trained in the round after the one applied, or might it have before it was restarted?"""
        return self._resumed or (self._fitted is not None and self._fitted.round == number)

    def fit(self, strategy: Strategy, context: RoundContext, received: Parameters) -> tuple[Parameters, float]:
        """The client's half of a round: what the strategy wants to send, and the seconds it took.

        A round that was fitted already is not trained again: what it gave could not be sent, or not be answered.
        """
        if self._fitted is None or self._fitted.round != context.round:
            self._fitted = self._train(strategy, context, received)
        return self._fitted.update, self._fitted.seconds

    def save_fitted(self, number: int) -> None:
        """Keep what training has given round `number`: another process may apply the round."""
        assert self._fitted is not None and self._fitted.round == number, "expected a round that was fitted"
        self._recovery.save_fitted(number, self._fitted.memory)

    def resume_fitted(self, number: int) -> bool:
        """Be where `save_fitted` left off, before the round is applied; False where nothing of it is kept."""
        return self._recovery.resume_fitted(number)

    def apply(self, received: Parameters, costs: RoundCosts) -> None:
        """Take over a round's personalised parameters, judge them, and serve them if they are the best so far."""
        self._load(received)
        figures = self._training.figures
        learnt = {"loss": figures.loss, "saturated": figures.saturated, "with_margins": figures.with_margins}
        self._best.judge(costs, **learnt)
        if self._fitted is not None:  # else another process fitted the round, and its memory was taken over
            self._tensors.memory = self._fitted.memory
        self._complete_round(costs.round)

    def finish(self, failure: str | None = None) -> None:
        """Test the best model, and forget what only a further round would need."""
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
        """The kernels that a scalar of the update compares, for the silo; without an anchor the last ones stay."""
        compared = self._training.comparable_kernels()
        if compared is not None:
            anchor, own = (tuple(kernel.tolist()) for kernel in compared)
            number, value = self._training.context.round, None if scalar is None else update.scalars.get(scalar)
            self.spectrum = SpectrumOut(run=self.place.run, round=number, own=own, anchor=anchor, rho=value)
            save_spectra(self.place.folder, self.spectrum)

    def _complete_round(self, number: int) -> None:
        """Everything before is kept first: a crash in between is followed by the same round and the same figures."""
        self._recovery.save(number)
        self.applied, self._fitted, self._resumed = number, None, False
