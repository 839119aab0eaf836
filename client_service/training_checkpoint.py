"""Training as it stands before a round <-> one file, replaced whole: arrays as safetensors, the rest as JSON.

It is what a client that was killed goes on from; what it serves is kept by serving/checkpoint.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from client_service.learning.state import TrainingState
from client_service.logs import LOGGER
from client_service.models.fusion import Recipe
from client_service.models.start import Filter
from client_service.schemas import QualityOut
from client_service.shard.files import settle
from shared.message import Message
from shared.method.parameters import Arrays, digest
from shared.method.settings import MethodSettings

FORMAT = "lpsfed-training/1"
NAME = "training.safetensors"


class Owner(Message):
    """What training belongs to: a run with its seed and settings, a shard, a model, and the choices made for it."""

    run: str
    seed: int
    shard: str
    method: MethodSettings
    kind: str
    start: Filter | None
    recipe: Recipe | None


class TrainingHead(Message):
    """All of a checkpoint that is no array."""

    format: str = FORMAT
    owner: Owner
    round: int
    quality: QualityOut
    scalars: dict[str, float]
    fitted: bool


@dataclass(frozen=True)
class TrainingCheckpoint:
    """Training after round `round` (0: before the first), its parameters received and evaluated."""

    owner: Owner
    round: int
    quality: QualityOut
    state: TrainingState


def keep_training(folder: Path, kept: TrainingCheckpoint) -> None:
    """Replace the checkpoint of this folder. It is durable when this returns."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: np.asarray(value, order="C") for name, value in kept.state.arrays.items()}
    head = _head(kept).model_dump_json()
    partial = folder / f"{NAME}.partial"
    save_file(arrays, partial, metadata={"head": head, "sha256": _checksum(head, arrays)})
    settle(partial, folder / NAME)


def kept_training(folder: Path, owner: Owner) -> TrainingCheckpoint | None:
    """The checkpoint of this folder; None where there is none, where it is another's, or where it cannot be read."""
    try:
        return _read(folder / NAME, owner)
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        LOGGER.warning("training_checkpoint_refused", reason=f"expected a whole one, got {type(error).__name__}")
        return None


def drop_training(folder: Path) -> None:
    """Nobody goes on with a run that is over."""
    (folder / NAME).unlink(missing_ok=True)


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
    """safetensors itself notices a file that is cut off, but not one whose bytes have changed."""
    return hashlib.sha256((head + digest(arrays)).encode()).hexdigest()
