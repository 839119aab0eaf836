"""One run as this client lives it: train, apply, evaluate, keep and serve the best. It never touches the network.

After each round it keeps all that the next one depends on: a client that is killed lives the round at hand again.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from client_service.figures import keep_quality, keep_spectra, kept_quality, kept_spectra
from client_service.learning.choice import Choice, keep_choice, kept_choice
from client_service.learning.evaluate import on_test, on_validation, validation_users
from client_service.learning.interrupt import NEVER, Interrupt
from client_service.learning.local import LocalTraining, Moment
from client_service.learning.measures import compared_kernels
from client_service.learning.quality import LABELS, PRIMARY, Measures
from client_service.learning.spectra import cached_spectrum
from client_service.logs import LOGGER
from client_service.schemas import QualityOut, RoundCosts, RoundQuality, SpectrumOut
from client_service.serving.checkpoint import ModelHead, load_parameters, read_head, save_model
from client_service.serving.recommender import Recommender, Served, freeze
from client_service.shard import Shard
from client_service.training_checkpoint import Owner, TrainingCheckpoint, drop_training, keep_training, kept_training
from shared.errors import DataError
from shared.method.exchanged import Parameters
from shared.method.parameters import digest
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum
from shared.strategies.strategy import Strategy


@dataclass(frozen=True)
class Place:
    """Where a participation belongs: the client's name, its run with seed and settings, the folder of its models.

    `kind` names the strategy's model, "" the one of the settings. `cache` is for what follows from the shard alone;
    without one it lies beside the models.
    """

    client: str
    run: str
    seed: int
    method: MethodSettings
    folder: Path
    kind: str = ""
    cache: Path | None = None


@dataclass(frozen=True)
class Fitted:
    """What training gave a round: the update, and the seconds it took."""

    round: int
    update: Parameters
    seconds: float


class Participation:
    """The model of one run. Its methods are slow, belong in a worker thread, and end early with Interrupted.

    What is kept on disk is then as it was before. `quality` and `spectrum` may be read at any time.
    """

    def __init__(
        self,
        place: Place,
        shard: Shard,
        recommender: Recommender,
        device: torch.device,
        interrupt: Interrupt = NEVER,
    ) -> None:
        self.place, self._shard, self._recommender = place, shard, recommender
        began = time.perf_counter()
        spectrum = cached_spectrum(shard, place.method.cutoff, place.cache or place.folder)
        seconds = time.perf_counter() - began
        self._training = _begun(place, shard, spectrum, device, interrupt)
        self._interrupt = interrupt
        self._users = validation_users(shard.train.shape[0], seed=0)
        self._best: Served | None = None
        self._fitted: Fitted | None = None  # until the round's parameters are applied: nothing is trained twice
        self._resumed = False  # and nothing applied since
        self.applied = 0
        self.quality = self._empty_quality(seconds)
        self.spectrum = kept_spectra(place.folder)

    @property
    def received(self) -> Parameters:
        """What came last from the aggregator."""
        return self._training.received

    @property
    def moment(self) -> Moment:
        """Of the round that was trained last."""
        return self._training.moment

    def resume(self, number: int) -> bool:
        """Go on where an earlier process was in this run, as if it had never ended.

        False, and nothing changed, where nothing fit was kept, or where the aggregator, whose last closed round is
        `number`, is behind it: then another run has the name.
        """
        kept = kept_training(self.place.folder, self._owner())
        if kept is None:
            return False
        if kept.round > number or not self._training.fits(kept.state):
            LOGGER.warning("training_set_aside", run=self.place.run, round=kept.round, closed=number)
            return False
        self._take_up_best()
        self._training.restore(kept.state)
        if self._best is None:  # its file is gone: until there is a better one, this serves
            self._best = self._recommender.served = freeze(f"{self.place.run}.{kept.round}", self._training)
        self.quality, self.applied, self._resumed = kept.quality, kept.round, True
        LOGGER.info("training_resumed", run=self.place.run, round=kept.round)
        return True

    def begin(self, received: Parameters, number: int) -> None:
        """Take over the run's parameters after round `number` (0: the initial ones) and serve them."""
        self._training.initialise(self.place.seed)
        if number > 0:  # at 0 a run begins, whatever had its name before
            self._fall_back(number)
        self.go_on(received, number)

    def go_on(self, received: Parameters, number: int) -> None:
        """Take over what a round gave in which this client did not train."""
        self._training.load(received)
        self._judge(RoundCosts(round=number))
        self._stand_after(number)

    def took_part(self, number: int) -> bool:
        """Has this client trained in the round after the one applied, or might it have before it was restarted?"""
        return self._resumed or (self._fitted is not None and self._fitted.round == number)

    def fit(self, strategy: Strategy, moment: Moment, received: Parameters) -> tuple[Parameters, float]:
        """The client's half of a round: what the strategy wants to send, and the seconds it took.

        A round that was fitted already is not trained again: what it gave could not be sent, or not be answered.
        """
        if self._fitted is None or self._fitted.round != moment.round:
            self._fitted = self._trained(strategy, moment, received)
        return self._fitted.update, self._fitted.seconds

    def apply(self, received: Parameters, costs: RoundCosts) -> None:
        """Take over a round's personalised parameters, evaluate, and serve them if they are the best so far."""
        self._training.load(received)
        trained = self._training.figures
        self._judge(costs, loss=trained.loss, saturated=trained.saturated)
        self._stand_after(costs.round)

    def finish(self, failure: str | None = None) -> None:
        """Read the test items, once, with the model that validation chose."""
        if self._best is None:
            return
        found = on_test(self._shard, self._interrupt.before(self._best.ranker.top))
        test = {LABELS[name].key: value for name, value in found.values.items()}
        ended = {
            "test": test,
            "test_users": found.users,
            "finished": True,
            "failure": failure,
            "angles": self._angles(),
            "shared_digest": self.shared_digest(),
        }
        self._keep(self.quality.model_copy(update=ended))
        drop_training(self.place.folder)

    def shared_digest(self) -> str:
        """sha256 over both MLPs as they are now."""
        return digest(self._training.arrays())

    def _show_spectrum(self, rho: float | None) -> None:
        """What rho compared, for the silo's own eyes. A round without an anchor leaves what the last one showed."""
        compared = compared_kernels(self._training)
        if compared is not None:
            anchor, own = (tuple(kernel.tolist()) for kernel in compared)
            number = self._training.moment.round
            self.spectrum = SpectrumOut(run=self.place.run, round=number, own=own, anchor=anchor, rho=rho)
            keep_spectra(self.place.folder, self.spectrum)

    def _trained(self, strategy: Strategy, moment: Moment, received: Parameters) -> Fitted:
        began = time.perf_counter()
        self._training.moment = moment
        update = strategy.fit(self._training, received)
        seconds = time.perf_counter() - began
        self._show_spectrum(update.scalars.get("rho"))
        return Fitted(moment.round, update, seconds)

    def _stand_after(self, number: int) -> None:
        """Everything before is kept first: a crash in between is followed by the same round and the same figures."""
        kept = TrainingCheckpoint(self._owner(), number, self.quality, self._training.state())
        keep_training(self.place.folder, kept)
        self.applied, self._fitted, self._resumed = number, None, False

    def _owner(self) -> Owner:
        return Owner(seed=self.place.seed, **self._origin())

    def _origin(self) -> dict[str, Any]:
        """What a model, and its training, belong to."""
        place, training = self.place, self._training
        return {
            "shard": self._shard.digest,
            "run": place.run,
            "method": place.method,
            "kind": place.kind,
            "start": training.start,
            "recipe": training.recipe,
        }

    def _fall_back(self, number: int) -> None:
        """Without a training checkpoint: go on from the best model of this run that was kept, and from its figures."""
        head, quality = read_head(self.place.folder), kept_quality(self.place.folder, "")
        if head is None or head.round > number or not self._take_up_best():
            return
        LOGGER.warning("training_lost", run=self.place.run, round=number, goes_on_from=head.round)
        if quality.run == self.place.run:
            earlier = tuple(entry for entry in quality.rounds if entry.round < number)
            self.quality = self.quality.model_copy(update={"rounds": earlier, "best_round": quality.best_round})

    def _take_up_best(self) -> bool:
        """Fill the model with the best one of this run that was kept, and serve it."""
        place, head = self.place, read_head(self.place.folder)
        mine = (self._shard.digest, place.run, place.method, place.kind)
        if head is None or (head.shard, head.run, head.method, head.kind) != mine:
            return False
        if not load_parameters(place.folder, head, self._training.model):
            return False
        self._best = self._recommender.served = freeze(head.version, self._training)
        return True

    def _judge(self, costs: RoundCosts, **learnt: float) -> None:
        began = time.perf_counter()
        served = freeze(f"{self.place.run}.{costs.round}", self._training)
        found = on_validation(self._shard, self._interrupt.before(served.ranker.top), self._users)
        best = max((entry.values[PRIMARY] for entry in self.quality.rounds), default=-1.0)
        seconds = time.perf_counter() - began
        judged = RoundQuality(**dict(costs), **learnt, values=dict(found.values), evaluate_seconds=seconds)
        update: dict[str, object] = {"rounds": (*self.quality.rounds, judged)}
        if found.primary_value > best:
            self._serve(served, costs.round, found)
            update["best_round"] = costs.round
        self._keep(self.quality.model_copy(update=update))

    def _serve(self, served: Served, number: int, measures: Measures) -> None:
        """Keep the checkpoint, then let it answer: what is served survives a restart."""
        head = ModelHead(round=number, values=dict(measures.values), **self._origin())
        save_model(self.place.folder, served.model, head)
        self._best = self._recommender.served = served

    def _keep(self, quality: QualityOut) -> None:
        keep_quality(self.place.folder, quality)
        self.quality = quality

    def _empty_quality(self, spectrum_seconds: float) -> QualityOut:
        start, recipe = self._training.start, self._training.recipe
        return QualityOut(
            client=self.place.client,
            run=self.place.run,
            users=self._shard.train.shape[0],
            items=self._shard.train.shape[1],
            edges=self._shard.train.nnz,
            spectrum_seconds=spectrum_seconds,
            start=None if start is None else asdict(start),
            recipe=None if recipe is None else asdict(recipe),
        )

    def _angles(self) -> dict[str, float]:
        """Mean xi over users by log2 bucket of the item's popularity."""
        tables = self._training.tables
        weights = torch.bincount(tables.user_bucket, minlength=len(tables.user_table)).cpu().numpy()
        angles = np.average(tables.angles().cpu().numpy(), axis=0, weights=weights)
        return {str(bucket): float(angle) for bucket, angle in enumerate(angles)}


def _begun(place: Place, shard: Shard, spectrum: Spectrum, device: torch.device, interrupt: Interrupt) -> LocalTraining:
    """A model where its run begins, with the choices that an earlier run made on the same shard."""
    method, folder = place.method, place.cache or place.folder
    kept = kept_choice(shard, method.cutoff, folder)
    recipe = kept.recipe if method.fusion else None
    training = LocalTraining(shard, spectrum, method, device, kept.start, interrupt, place.kind, recipe)
    made = Choice(start=training.start or kept.start, recipe=training.recipe or kept.recipe)
    if made != kept:
        keep_choice(shard, method.cutoff, folder, made)
    return training


def kept_model(shard: Shard, folder: Path, device: torch.device) -> Served | None:
    """The model kept by an earlier process, or None where there is none that fits the shard."""
    head = read_head(folder)
    if head is None or head.shard != shard.digest:
        return None
    spectrum = cached_spectrum(shard, head.method.cutoff, folder)
    training = LocalTraining(shard, spectrum, head.method, device, head.start, recipe=head.recipe, kind=head.kind)
    if not load_parameters(folder, head, training.model):
        raise DataError(f"{folder / head.parameters}: expected the kept model, got a damaged or other file")
    return freeze(head.version, training)
