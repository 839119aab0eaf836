"""Training of a run on the disk: a client that is killed does the round at hand again, from where it was before it."""

from __future__ import annotations

from client_service.best_model import BestModel
from client_service.figures import kept_quality
from client_service.logs import LOGGER
from client_service.serving.checkpoint import read_head
from client_service.tasks.task import Place, Training
from client_service.training_checkpoint import Owner, TrainingCheckpoint, drop_training, keep_training, kept_training


class Recovery:
    """Of one run: its checkpoint is written after each round, before the next one begins."""

    def __init__(self, place: Place, training: Training, best: BestModel) -> None:
        self._place, self._training, self._best = place, training, best

    @property
    def _owner(self) -> Owner:
        return Owner(seed=self._place.seed, **self._best.origin)

    def keep(self, number: int) -> None:
        """Write all that the round after `number` depends on. It is durable when this returns."""
        kept = TrainingCheckpoint(self._owner, number, self._best.quality, self._training.state())
        keep_training(self._place.folder, kept)

    def resume(self, closed: int) -> int | None:
        """Take over what an earlier process kept of this run, and give the round after which it did.

        None, and nothing is changed, where nothing fits, or where `closed`, the aggregator's last round, is behind it.
        """
        kept = kept_training(self._place.folder, self._owner)
        if kept is None:
            return None
        if kept.round > closed or not self._training.fits(kept.state):
            LOGGER.warning("training_set_aside", run=self._place.run, round=kept.round, closed=closed)
            return None
        self._best.take_up()
        self._training.restore(kept.state)
        if self._best.served is None:  # its file is gone: until there is a better one, this serves
            self._best.serve_current(kept.round)
        self._best.quality = kept.quality
        LOGGER.info("training_resumed", run=self._place.run, round=kept.round)
        return kept.round

    def fall_back(self, number: int) -> None:
        """Without a checkpoint: go on from the best model of this run that was kept, and from its figures."""
        place = self._place
        head, quality = read_head(place.folder), kept_quality(place.folder, "")
        if head is None or head.round > number or not self._best.take_up():
            return
        LOGGER.warning("training_lost", run=place.run, round=number, goes_on_from=head.round)
        if quality.run == place.run:
            earlier = tuple(entry for entry in quality.rounds if entry.round < number)
            changes = {"rounds": earlier, "best_round": quality.best_round}
            self._best.quality = self._best.quality.model_copy(update=changes)

    def drop(self) -> None:
        """Nobody goes on with a run that is over."""
        drop_training(self._place.folder)
