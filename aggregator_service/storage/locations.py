"""Storage of one federation: its rows and files, and the tensors that runs start with."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aggregator_service.process import SerialWorker
from aggregator_service.storage.database import Database
from aggregator_service.storage.disk import Blobs
from aggregator_service.storage.records import StoredState
from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import Arrays, State, memory_form
from shared.protocol.schemas import RunIn
from shared.protocol.wire import decode_body
from shared.strategies import strategy_of_part
from shared.strategies.strategy import Strategy


@dataclass(frozen=True)
class StartFile:
    """File with the initial tensors of runs.

    digest: sha256 of the file, which a run carries. arrays: its tensors by name.
    """

    digest: str
    arrays: Arrays


def read_start(path: Path, declared: Sequence[TensorSpec]) -> StartFile:
    """Reads the file with the initial tensors.

    Raises SettingsError for a file that cannot be read, or that holds undeclared tensors, another shape or type, or a
    value that is not finite.
    """
    try:
        content = path.read_bytes()
        _, parameters = decode_body(content)
    except (OSError, ProtocolError) as error:
        raise SettingsError(f"start: expected a safetensors file of float32 tensors at {path}, got: {error}") from None
    forms = {spec.name: spec.form for spec in declared}
    shapes = {name: form.shape for name, form in forms.items()}
    for name, value in parameters.arrays.items():
        if shapes.get(name) != value.shape:
            expected = list(shapes[name]) if name in shapes else f"one of {sorted(shapes)}"
            raise SettingsError(f"start: expected {expected}, got {name!r} of shape {list(value.shape)}")
        if memory_form(value) != forms[name]:
            raise SettingsError(f"start: expected dtype {forms[name].dtype}, got another for {name!r}")
        if not np.isfinite(value).all():
            raise SettingsError(f"start: expected finite values in {name!r}, got NaN or infinity")
    return StartFile(hashlib.sha256(content).hexdigest(), parameters.arrays)


class AnsweredRound(NamedTuple):
    """Round whose clients are answered: row and content of its state, and its strategy."""

    row: StoredState
    state: State
    strategy: Strategy


class RecentRound:
    """Round that was answered last; all of its answers read it once."""

    def __init__(self) -> None:
        self._held: AnsweredRound | None = None

    def find(self, run: str, number: int) -> AnsweredRound | None:
        """Returns a round; None if another was answered last."""
        held = self._held
        return held if held is not None and (held.row.run, held.row.round) == (run, number) else None

    def keep(self, answered: AnsweredRound) -> None:
        """Keeps a round in place of the one before."""
        self._held = answered

    def clear(self) -> None:
        self._held = None


@dataclass(frozen=True)
class Archive:
    """Database and files of one federation, with its declaration.

    longest_update: largest body of an update in bytes. retention_rounds: number of rounds that stay available. start:
    tensors that runs begin with, where the operator gave some.
    """

    database: Database
    blobs: Blobs
    declaration: Declaration
    longest_update: int
    retention_rounds: int
    start: StartFile | None = None
    tensors: SerialWorker = field(default_factory=SerialWorker)
    recent: RecentRound = field(default_factory=RecentRound)

    @property
    def reads_ranges(self) -> bool:
        """Whether workers that share a bucket read ranges of open updates from it."""
        return self.database.workers is not None and not self.blobs.shared and not self.declaration.secure

    def probe(self) -> None:
        """Stores test data of an update's size; clears the last refusal where that works.

        Raises UnavailableError if the disk or the database refuses.
        """
        sizes = (sum(math.prod(spec.shape) for spec in part.uploaded) for part in self.declaration.parts)
        self.blobs.probe(4 * max(sizes))
        self.database.probe()
        self.database.disk.refusal = None

    def strategy(self, request: RunIn) -> Strategy:
        """Returns the strategy of a run, with its settings, or that of its sum."""
        return strategy_of_part(request.part, self.declaration.strategy, request.method)
