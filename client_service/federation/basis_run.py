"""Client's part of a run that sums: its addends, and the resulting statistics.

It has the methods of `training_run` for the agent, and makes no network calls. Its methods are slow and belong in a
worker thread.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from client_service.federation.messages import RoundCosts
from client_service.sums.common_items import CommonItems
from client_service.sums.registry import SILO_SUMS
from client_service.sums.silo_sum import Statistics, SummedDigests, SumRound, Sums
from client_service.sums.storage import ADDED, INCLUDED, has_mark, remove_mark, save_basis, save_mark
from client_service.tasks.task import RunContext
from client_service.training.training_state import RoundContext
from shared.errors import ProtocolError
from shared.files import save_arrays
from shared.method.declaration import Part
from shared.method.parameters import Parameters, digest_arrays
from shared.strategies.strategy import Strategy
from shared.strategies.sum_strategy import sum_strategy
from shared.sums import find_part, find_sum
from shared.sums.sum import EMPTY_PART_DIGEST


class BasisRun:
    """Sums of one run, and the statistics that follow from them.

    applied: last round whose sums were applied. counted: result of `SiloSum.count` for the shard.
    folder: where the statistics are kept. clients: largest number that the sums have room for. summed: digests of
    what the silo adds. federation: the key of its aggregator. items: the list that is summed over, where the silos
    have summed one; hidden: own items that another one hides there. over, secret: see `SumRound`. adds_all_data: the
    silo's validation and test data are among what it adds.
    """

    def __init__(
        self,
        place: RunContext,
        counted: Any,
        folder: Path,
        clients: int,
        summed: SummedDigests,
        *,
        federation: str = "",
        items: CommonItems | None = None,
        hidden: int = 0,
        over: Statistics | None = None,
        adds_all_data: bool = False,
        secret: bytes = b"",
    ) -> None:
        self.summed: SummedDigests | None = summed
        self.place, self.strategy = place, sum_strategy(place.method)
        self._counted, self._folder, self._clients = counted, folder, clients
        self._federation, self._items, self._adds_all_data = federation, items, adds_all_data
        self._hidden, self._over, self._secret = hidden, over, secret
        self._settings, self._sum = place.method.basis, find_sum(place.method)
        self.part: Part = find_part(self._settings)
        self._sums: dict[int, Sums] = {}
        self.applied = 0
        self.context = RoundContext(0, self._sum.rounds(self._settings), place.seed, None)
        self.basis: Statistics | None = None

    @property
    def received(self) -> Parameters:
        """The sums that came last; zeros before the first."""
        if self.applied:
            return Parameters(self._sums[self.applied])
        zeros = {one.name: np.zeros(one.shape, np.uint32) for one in self.strategy.tensors(self.place.method)}
        return Parameters(zeros)

    @property
    def is_empty(self) -> bool:
        """True if this silo adds zeros."""
        return self.summed is not None and self.summed.catalogue == EMPTY_PART_DIGEST

    @property
    def warning(self) -> str:
        """Warns the silo's operator that the silo adds zeros, and why."""
        why = SILO_SUMS[self._sum.name].nothing
        return f"{why}: it adds zeros to this sum, and the other silos and the aggregator learn that"

    @property
    def finished(self) -> bool:
        """True if the statistics are kept."""
        return self.basis is not None

    @property
    def shared_digest(self) -> str:
        """sha256 over the latest sums."""
        return digest_arrays(self.received.arrays)

    def resume(self, closed: int) -> bool:
        """Loads the sums that an earlier process kept; False without any of this run."""
        try:
            with safe_open(self._path, framework="numpy") as file:
                head = dict(file.metadata() or {})
            arrays = load_file(self._path)
        except (OSError, SafetensorError):
            return False
        if (head.get("run"), head.get("seed")) != (self.place.run, str(self.place.seed)):
            return False
        for key, value in arrays.items():
            number, _, name = key.partition("/")
            self._sums.setdefault(int(number), {})[name] = value
        self.applied = max((number for number in self._sums if number <= closed), default=0)
        return self.applied > 0

    def begin(self, received: Parameters, number: int) -> None:
        """Applies the sums after round `number`; 0: there are none yet."""
        if number:
            self.skip_round(received, number)

    def missing_round(self, number: int) -> int | None:
        """Returns a round whose sums are still needed with those of round `number`, or None."""
        return next((before for before in self._needed(number) if before not in self._sums), None)

    def _needed(self, number: int) -> range:
        """Returns the earlier rounds whose sums are used with those of round `number`."""
        return range(max(1, number + 1 - self._sum.sums_needed(self._settings)), number)

    def has_trained(self, number: int) -> bool:
        """Returns False: sums of a closed round are final."""
        del number
        return False

    def fit(self, strategy: Strategy, context: RoundContext, received: Parameters) -> tuple[Parameters, float]:
        """Computes this silo's part of a round, and the seconds it took.

        A repetition gives the same part.
        """
        began = time.perf_counter()
        self.context = context
        update = strategy.fit(self, received)  # type: ignore[arg-type]  # a sum's strategy calls `load` and `arrays` alone
        return update, time.perf_counter() - began

    def save_fitted(self, number: int) -> None:
        """Does nothing: a round's part follows from the kept sums of earlier rounds."""

    def resume_fitted(self, number: int) -> bool:
        """Returns True, because a round's sums are applied without other data."""
        del number
        return True

    def load(self, received: Parameters) -> None:
        """Does nothing: a round begins with the kept sums of the one before."""
        del received

    def arrays(self) -> Sums:
        """Computes this silo's part of the current round, and marks that it is included."""
        for name in (INCLUDED, ADDED) if self._adds_all_data else (INCLUDED,):
            save_mark(self._folder, name, self.place.run)
        return SILO_SUMS[self._sum.name].add(self._round(self.context.round))

    def withdraw(self) -> None:
        """Removes the mark that this silo's part is included in the run's sums.

        It was refused, or came too late.
        """
        for name in (INCLUDED, ADDED):
            remove_mark(self._folder, name, self.place.run)

    def _round(self, number: int) -> SumRound:
        place = self.place
        included = has_mark(self._folder, INCLUDED, place.run)
        return SumRound(
            self._counted,
            place.method,
            place.seed,
            self._clients,
            number,
            self._sums,
            self._federation,
            included,
            self._over,
            self._secret,
        )

    def skip_round(self, received: Parameters, number: int) -> None:
        """Applies the sums of round `number`; they are durable when this returns."""
        self.store_received(received, number)
        self._sums = {kept: self._sums[kept] for kept in (*self._needed(number), number) if kept in self._sums}
        self.applied = number
        self._save_sums()

    def store_received(self, received: Parameters, number: int) -> None:
        """Stores the sums of a round in memory."""
        self._sums[number] = {name: np.asarray(value) for name, value in received.arrays.items()}

    def apply(self, received: Parameters, costs: RoundCosts) -> None:
        """Applies a round's sums."""
        self.skip_round(received, costs.round)

    def finish(self, failure: str | None = None) -> None:
        """Saves the statistics of a finished run, and deletes its sums.

        failure: nothing is saved of a failed run.
        """
        if failure is None:
            included, added_all = (has_mark(self._folder, name, self.place.run) for name in (INCLUDED, ADDED))
            self.basis = replace(self._read_sums(), added_all_data=added_all, included=included or added_all)
            save_basis(self._folder, self.place.run, self.basis, self._hidden)
        self._path.unlink(missing_ok=True)

    def _read_sums(self) -> Statistics:
        last = self._sum.rounds(self._settings)
        if self.applied != last:
            raise ProtocolError(f"expected the sums of round {last} of {self.place.run}, got those of {self.applied}")
        found = SILO_SUMS[self._sum.name].finish(self._round(last))
        return found if self._items is None else found.over(self._items)

    @property
    def _path(self) -> Path:
        return self._folder / f"{self.part}-run.safetensors"

    def _save_sums(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"{number}/{name}": value for number, sums in self._sums.items() for name, value in sums.items()}
        save_arrays(self._path, arrays, {"run": self.place.run, "seed": str(self.place.seed)})
