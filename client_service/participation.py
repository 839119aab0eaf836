"""One run as this client lives it: train, apply, evaluate, keep and serve the best. It never touches the network."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from client_service.figures import keep_quality, keep_spectra, kept_quality, kept_spectra
from client_service.learning.choice import Choice, keep_choice, kept_choice
from client_service.learning.evaluate import on_test, on_validation, validation_users
from client_service.learning.interrupt import NEVER, Interrupt
from client_service.learning.local import LocalTraining, Moment
from client_service.learning.spectra import cached_spectrum
from client_service.schemas import QualityOut, RoundQuality, SpectrumOut
from client_service.serving.checkpoint import ModelHead, load_parameters, read_head, save_model
from client_service.serving.recommender import Recommender, Served, freeze
from client_service.shard import Shard
from shared.errors import DataError
from shared.parameters import digest
from shared.settings import MethodSettings
from shared.spectrum import Spectrum
from shared.strategy import Parameters, Strategy


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
        self.applied = 0
        self.quality = self._empty_quality(seconds)
        self.spectrum = kept_spectra(place.folder)

    def begin(self, received: Parameters, number: int) -> None:
        """Take over the run's parameters after round `number` (0: the initial ones) and serve them."""
        self._training.initialise(self.place.seed)
        self._resume(number)
        self._training.load(received)
        self._judge(RoundQuality(round=number, recall=0.0, ndcg=0.0))
        self.applied = number

    def fit(self, strategy: Strategy, moment: Moment, received: Parameters) -> tuple[Parameters, float]:
        """The client's half of a round: what the strategy wants to send, and the seconds it took."""
        began = time.perf_counter()
        self._training.moment = moment
        update = strategy.fit(self._training, received)
        seconds = time.perf_counter() - began
        self._show_spectrum(update.scalars.get("rho"))
        return update, seconds

    def apply(self, received: Parameters, figures: RoundQuality) -> None:
        """Take over a round's personalised parameters, evaluate, and serve them if they are the best so far."""
        self._training.load(received)
        trained = self._training.figures
        self._judge(figures.model_copy(update={"loss": trained.loss, "saturated": trained.saturated}))
        self.applied = figures.round

    def finish(self, failure: str | None = None) -> None:
        """Read the test items, once, with the model that validation chose."""
        if self._best is None:
            return
        found = on_test(self._shard, self._interrupt.before(self._best.ranker.top))
        test = {"recall@20": found.recall, "ndcg@20": found.ndcg}
        ended = {
            "test": test,
            "test_users": found.users,
            "finished": True,
            "failure": failure,
            "angles": self._angles(),
        }
        self._keep(self.quality.model_copy(update=ended))

    def shared_digest(self) -> str:
        """sha256 over both MLPs as they are now."""
        return digest(self._training.arrays())

    def _show_spectrum(self, rho: float | None) -> None:
        """What rho compared, for the silo's own eyes. A round without an anchor leaves what the last one showed."""
        compared = self._training.compared()
        if compared is not None:
            anchor, own = (tuple(kernel.tolist()) for kernel in compared)
            number = self._training.moment.round
            self.spectrum = SpectrumOut(run=self.place.run, round=number, own=own, anchor=anchor, rho=rho)
            keep_spectra(self.place.folder, self.spectrum)

    def _resume(self, number: int) -> None:
        """After a restart in mid-run: go on from the best model of this run that was kept, and from its figures."""
        place, head, quality = self.place, read_head(self.place.folder), kept_quality(self.place.folder, "")
        mine = (self._shard.digest, place.run, place.method, place.kind)
        same = head is not None and (head.shard, head.run, head.method, head.kind) == mine
        if head is None or not same or not head.round <= number > 0:  # at 0 a run begins, whatever had its name before
            return
        if not load_parameters(place.folder, head, self._training.model):
            return
        self._best = self._recommender.served = freeze(head.version, self._training)
        if quality.run == place.run:
            earlier = tuple(entry for entry in quality.rounds if entry.round < number)
            self.quality = self.quality.model_copy(update={"rounds": earlier, "best_round": quality.best_round})

    def _judge(self, figures: RoundQuality) -> None:
        began = time.perf_counter()
        served = freeze(f"{self.place.run}.{figures.round}", self._training)
        found = on_validation(self._shard, self._interrupt.before(served.ranker.top), self._users)
        best = max((entry.ndcg for entry in self.quality.rounds), default=-1.0)
        judged = {"recall": found.recall, "ndcg": found.ndcg, "evaluate_seconds": time.perf_counter() - began}
        rounds = (*self.quality.rounds, figures.model_copy(update=judged))
        update: dict[str, object] = {"rounds": rounds}
        if found.ndcg > best:
            self._serve(served, figures.round, recall=found.recall, ndcg=found.ndcg)
            update["best_round"] = figures.round
        self._keep(self.quality.model_copy(update=update))

    def _serve(self, served: Served, number: int, *, recall: float, ndcg: float) -> None:
        """Keep the checkpoint, then let it answer: what is served survives a restart."""
        place = self.place
        head = ModelHead(
            shard=self._shard.digest,
            run=place.run,
            round=number,
            method=place.method,
            kind=place.kind,
            start=self._training.start,
            recipe=self._training.recipe,
            recall=recall,
            ndcg=ndcg,
        )
        save_model(place.folder, served.model, head)
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
