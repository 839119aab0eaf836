"""Checkpoint of training before a round, in one file that is replaced as a whole.

Arrays are safetensors, the rest is JSON. A client that was killed repeats the round from it. Served models are saved
elsewhere: see model_store.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from client_service.federation.best_model import BestModel
from client_service.federation.messages import QualityOut
from client_service.federation.run_records import load_quality
from client_service.model_store.model_versions import find_version_of_run
from client_service.models.initial_filter import Filter
from client_service.models.score_fusion import Recipe
from client_service.runtime.logs import LOGGER
from client_service.tasks.task import RunContext, Training
from client_service.training.training_state import BROADCAST, MEMORY, StrategyTensors, TrainingState
from shared.files import save_arrays
from shared.message import Message
from shared.method.parameters import Arrays, digest_arrays
from shared.method.settings import MethodSettings

FORMAT = "lpsfed-training/1"
NAME = "training.safetensors"
FITTED = "fitted"  # a folder with a checkpoint between the training of a round and its end


class Owner(Message):
    """Identity of a checkpoint: run, seed, settings, shard, model, and its choices."""

    run: str
    seed: int
    shard: str
    method: MethodSettings
    kind: str
    start: Filter | None
    recipe: Recipe | None
    basis: str = ""
    content: str = ""
    text: str = ""


class TrainingHead(Message):
    """Metadata of a checkpoint, besides its arrays."""

    format: str = FORMAT
    owner: Owner
    round: int
    quality: QualityOut
    scalars: dict[str, float]
    fitted: bool


@dataclass(frozen=True)
class TrainingCheckpoint:
    """State of training after a round whose parameters were received and evaluated.

    round: 0 before the first.
    """

    owner: Owner
    round: int
    quality: QualityOut
    state: TrainingState


def save_checkpoint(folder: Path, kept: TrainingCheckpoint) -> None:
    """Replaces the checkpoint of a folder; durable when this returns."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.asarray(value, order="C") for name, value in kept.state.arrays.items()}
    head = _head(kept).model_dump_json()
    save_arrays(folder / NAME, arrays, {"head": head, "sha256": _checksum(head, arrays)})


def load_checkpoint(folder: Path, owner: Owner) -> TrainingCheckpoint | None:
    """Loads the checkpoint of a folder.

    Returns None if there is none, if it has another owner, or if it cannot be read.
    """
    try:
        return _read(folder / NAME, owner)
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        LOGGER.warning("training_checkpoint_refused", reason=f"expected a complete file, got {type(error).__name__}")
        return None


def delete_checkpoint(folder: Path) -> None:
    """Deletes the checkpoints of an ended run or an old shard."""
    for path in (folder / NAME, folder / FITTED / NAME):
        path.unlink(missing_ok=True)


def _read(path: Path, owner: Owner) -> TrainingCheckpoint | None:
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata() or {}
        head = TrainingHead.model_validate_json(metadata["head"])
        if (head.format, head.owner) != (FORMAT, owner):
            return None
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if metadata["sha256"] != _checksum(metadata["head"], arrays):
        raise ValueError("expected the checksum of what was written, got another")
    return TrainingCheckpoint(owner, head.round, head.quality, TrainingState(arrays, head.scalars, head.fitted))


def _head(kept: TrainingCheckpoint) -> TrainingHead:
    scalars, fitted = dict(kept.state.scalars), kept.state.fitted
    return TrainingHead(owner=kept.owner, round=kept.round, quality=kept.quality, scalars=scalars, fitted=fitted)


def _checksum(head: str, arrays: Arrays) -> str:
    """Computes a checksum over head and arrays.

    safetensors notices a truncated file, but no changed bytes.
    """
    return hashlib.sha256((head + digest_arrays(arrays)).encode()).hexdigest()


class Recovery:
    """Checkpoints of one run, written after each round before the next begins."""

    def __init__(self, place: RunContext, training: Training, best: BestModel, tensors: StrategyTensors) -> None:
        """Keeps the parts of a run that a checkpoint has.

        tensors: the strategy's, as they are at any time; filled where a checkpoint is loaded.
        """
        self._place, self._training, self._best, self._tensors = place, training, best, tensors

    @property
    def _owner(self) -> Owner:
        return Owner(seed=self._place.seed, **self._best.origin)

    def save(self, number: int) -> None:
        """Writes all state that the round after `number` depends on; durable when this returns."""
        save_checkpoint(self._place.folder, self._checkpoint(number, self._tensors))

    def resume(self, closed: int) -> int | None:
        """Restores the checkpoint of this run, and returns its round.

        None, and nothing is changed, where none fits, or where `closed`, the aggregator's last round, is behind it.
        """
        kept = load_checkpoint(self._place.folder, self._owner)
        if kept is None:
            return None
        if kept.round > closed or not self._training.fits(kept.state):
            LOGGER.warning("training_set_aside", run=self._place.run, round=kept.round, closed=closed)
            return None
        self._best.resume()
        self._restore(kept.state)
        if self._best.served is None:  # its file is gone: until there is a better one, this serves
            self._best.serve_current(kept.round)
        self._best.quality = kept.quality
        LOGGER.info("training_resumed", run=self._place.run, round=kept.round)
        return kept.round

    def save_fitted(self, number: int, memory: Arrays) -> None:
        """Writes training after the local epochs of round `number`, beside the checkpoint.

        memory: the client memory that these epochs gave.
        """
        tensors = StrategyTensors(self._tensors.broadcast, memory)
        save_checkpoint(self._place.folder / FITTED, self._checkpoint(number, tensors))

    def resume_fitted(self, number: int) -> bool:
        """Restores what `save_fitted` wrote.

        False, and nothing is changed, where it is of another round.
        """
        kept = load_checkpoint(self._place.folder / FITTED, self._owner)
        if kept is None or kept.round != number or not self._training.fits(kept.state):
            return False
        self._restore(kept.state)
        return True

    def _checkpoint(self, number: int, tensors: StrategyTensors) -> TrainingCheckpoint:
        state = self._training.state().with_strategy(tensors)
        return TrainingCheckpoint(self._owner, number, self._best.quality, state)

    def _restore(self, state: TrainingState) -> None:
        self._training.restore(state)
        self._tensors.broadcast, self._tensors.memory = state.part(BROADCAST), state.part(MEMORY)

    def resume_from_best(self, number: int) -> None:
        """Continues from the best saved model and its measures, without a checkpoint."""
        place = self._place
        head, quality = find_version_of_run(place.folder, place.run), load_quality(place.folder, "")
        if head is None or head.round > number or not self._best.resume():
            return
        LOGGER.warning("training_lost", run=place.run, round=number, goes_on_from=head.round)
        if quality.run == place.run:
            earlier = tuple(entry for entry in quality.rounds if entry.round < number)
            changes = {"rounds": earlier, "best_round": quality.best_round}
            self._best.quality = self._best.quality.model_copy(update=changes)

    def delete(self) -> None:
        """Deletes the checkpoints of an ended run."""
        delete_checkpoint(self._place.folder)
