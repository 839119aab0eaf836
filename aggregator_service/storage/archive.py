"""Where a federation's rows and files lie, and what it exchanges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from aggregator_service.storage.blobs import Blobs
from aggregator_service.storage.database import Database
from aggregator_service.storage.start_file import StartFile
from aggregator_service.threads import OneAtATime
from shared.method.declaration import Declaration
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy
from shared.strategies.strategy import Strategy


@dataclass(frozen=True)
class Archive:
    """`longest_update`: bytes of an update's body at most; `retention_rounds`: how many rounds stay available;
    `start`: the tensors that runs begin with, where the operator has given some."""

    database: Database
    blobs: Blobs
    declaration: Declaration
    longest_update: int
    retention_rounds: int
    start: StartFile | None = None
    tensors: OneAtATime = field(default_factory=OneAtATime)

    def probe(self) -> None:
        """Give the disk what an update gives it: a file of that size, and a transaction. UnavailableError where it
        refuses either; else what it refused before is forgotten."""
        self.blobs.probe(4 * sum(math.prod(spec.shape) for spec in self.declaration.uploaded))
        self.database.probe()
        self.database.disk.refusal = None

    def strategy(self, method: MethodSettings) -> Strategy:
        """The federation's strategy with a run's settings."""
        return build_strategy(self.declaration.strategy, method)
