"""One basis run at this client: its part of each round's sums, and the common basis that the last ones become.

The same verbs as those of `training_run`, for the agent. It never touches the network. Its methods are slow and belong
in a worker thread.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
from scipy import sparse

from client_service.common_basis.basis import (
    CommonBasis,
    basis_of_noised,
    basis_of_pairs,
    basis_of_products,
    basis_of_rounds,
    require_possible,
)
from client_service.common_basis.statistics import (
    begin_sums,
    count_pairs,
    encode_sums,
    normalised_products,
    pack_sums,
    raw_products,
    weigh_pairs,
)
from client_service.common_basis.storage import added_everything, keep_basis, note_everything
from client_service.common_basis.subspace_iteration import (
    Explored,
    explore,
    first_directions,
    next_directions,
    start_directions,
)
from client_service.federation.messages import RoundCosts
from client_service.tasks.task import RunContext, SummedDigests
from client_service.training.training_state import RoundContext
from shared.errors import ProtocolError
from shared.files import save_arrays
from shared.method.declaration import Part
from shared.method.parameters import Parameters, digest
from shared.strategies.common_basis import DEGREES, PRODUCTS, common_basis, decode_products
from shared.strategies.strategy import Strategy

NAME = "basis-run.safetensors"
Sums = dict[str, NDArray[np.uint32]]


class BasisRun:
    """The statistics of one run. `applied`: the last round whose sums are here.

    interactions: X_c, (M, N) over the catalogue. folder: where the basis is kept. clients: how many the sums have room
    for. summed: digests of what the silo adds. everything: are its validation and test pairs among it?
    """

    part: Part = "basis"

    def __init__(
        self,
        place: RunContext,
        interactions: sparse.csr_array,
        folder: Path,
        clients: int,
        summed: SummedDigests,
        *,
        everything: bool = False,
    ) -> None:
        self.summed: SummedDigests | None = summed
        self.place, self.strategy = place, common_basis(place.method)
        self._interactions, self._folder, self._clients = interactions, folder, clients
        self._everything = everything
        self._settings = place.method.basis
        self._sums: dict[int, Sums] = {}
        self.applied = 0
        self.moment = RoundContext(0, self._settings.rounds_needed, place.seed, None)
        self.basis: CommonBasis | None = None

    @property
    def received(self) -> Parameters:
        """The sums that came last; zeros before the first."""
        if self.applied:
            return Parameters(self._sums[self.applied])
        zeros = {one.name: np.zeros(one.shape, np.uint32) for one in self.strategy.tensors(self.place.method)}
        return Parameters(zeros)

    @property
    def finished(self) -> bool:
        """Is the basis kept?"""
        return self.basis is not None

    @property
    def shared_digest(self) -> str:
        """sha256 over the sums that came last."""
        return digest(self.received.arrays)

    def resume(self, closed: int) -> bool:
        """Take up what an earlier process has kept of this run; False where that is nothing, or of another run."""
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
        """Take over the sums after round `number`; 0: there are none yet."""
        if number:
            self.skip_round(received, number)

    def missing_round(self, number: int) -> int | None:
        """A round whose sums are needed beside those of round `number`, and are not here; None where none is."""
        return next((before for before in self._needed(number) if before not in self._sums), None)

    def _needed(self, number: int) -> range:
        """The rounds whose sums are used together with those of round `number`."""
        return range(max(1, number + 1 - self._settings.sums_needed), number)

    def trained_in(self, number: int) -> bool:
        """A closed round is never done again: its sums say all that there is."""
        del number
        return False

    def fit(self, strategy: Strategy, moment: RoundContext, received: Parameters) -> tuple[Parameters, float]:
        """This silo's part of a round, and the seconds that it took; again, the same."""
        began = time.perf_counter()
        self.moment = moment
        update = strategy.fit(self, received)  # type: ignore[arg-type]  # of a client's verbs it needs two
        return update, time.perf_counter() - began

    def keep_fitted(self, number: int) -> None:
        """What a round sends follows from the sums of those before, which are kept."""

    def resume_fitted(self, number: int) -> bool:
        """Nothing is needed to take over a round's sums."""
        del number
        return True

    def load(self, received: Parameters) -> None:
        """A round begins at the sums of the one before, which are here already."""
        del received

    def arrays(self) -> Sums:
        """This silo's part of the round at hand."""
        if self._everything:
            note_everything(self._folder, self.place.run)
        if self._settings.kind == "exact":
            count = count_pairs if self._settings.epsilon is None else weigh_pairs
            return count(self._interactions)
        if self._settings.words is not None:
            return self._explore(self._settings.words)
        exponent, directions = self._settings.exponent, self._directions(self.moment.round)
        if self.moment.round == 1:
            products = raw_products(self._interactions, directions, exponent)
        else:
            products = normalised_products(self._interactions, directions, exponent, self._all_degrees())
        return encode_sums(self._interactions, products, self._clients)

    def _explore(self, words: int) -> Sums:
        """The same where the products of all rounds are kept."""
        if self.moment.round > 1:
            return pack_sums(self._interactions, self._explored(self.moment.round - 1))
        start = first_directions(self.place.seed, self.place.method.catalogue, words)
        return begin_sums(self._interactions, start, self._settings.exponent, self._clients)

    def _explored(self, last: int) -> Explored:
        """What the sums up to a round tell."""
        sums = [self._sums[number] for number in range(1, last + 1)]
        return explore(sums, self._settings.exponent, self.place.seed)

    def _all_degrees(self) -> NDArray[np.int64]:
        return self._sums[min(self._sums)][DEGREES].astype(np.int64)

    def _directions(self, number: int) -> NDArray[np.float64]:
        """What round `number` takes products with."""
        if number == 1:
            return start_directions(self.place.seed, self.place.method.catalogue, self._settings.rank)
        before = self._sums[number - 1]
        products, all_degrees = decode_products(before[PRODUCTS]), before[DEGREES].astype(np.int64)
        return next_directions(products, all_degrees, self._settings.exponent, first=number == 2)

    def skip_round(self, received: Parameters, number: int) -> None:
        """Take over the sums of round `number`. They are durable when this returns."""
        self.remember(received, number)
        self._sums = {kept: self._sums[kept] for kept in (*self._needed(number), number) if kept in self._sums}
        self.applied = number
        self._keep()

    def remember(self, received: Parameters, number: int) -> None:
        """Have the sums of a round at hand."""
        self._sums[number] = {name: np.asarray(value) for name, value in received.arrays.items()}

    def apply(self, received: Parameters, costs: RoundCosts) -> None:
        """Take over a round's sums."""
        self.skip_round(received, costs.round)

    def finish(self, failure: str | None = None) -> None:
        """Keep the basis; of a run that has failed, nothing."""
        if failure is None:
            everything = added_everything(self._folder, self.place.run)
            self.basis = replace(require_possible(self._make_basis()), everything=everything)
            keep_basis(self._folder, self.place.run, self.basis)
        self._path.unlink(missing_ok=True)

    def _make_basis(self) -> CommonBasis:
        last, exponent = self._settings.rounds_needed, self._settings.exponent
        if self.applied != last:
            raise ProtocolError(f"expected the sums of round {last} of {self.place.run}, got those of {self.applied}")
        if self._settings.epsilon is not None:
            return basis_of_noised(self._sums[last], self.place.method.catalogue, self._settings.rank)
        if self._settings.kind == "exact":
            return basis_of_pairs(self._sums[last], exponent)
        if self._settings.words is not None:
            degrees, rank = self._sums[last][DEGREES], self._settings.rank
            return basis_of_rounds(self._explored(last), degrees, rank)
        return basis_of_products(self._sums[last], self._directions(last), exponent)

    @property
    def _path(self) -> Path:
        return self._folder / NAME

    def _keep(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"{number}/{name}": value for number, sums in self._sums.items() for name, value in sums.items()}
        save_arrays(self._path, arrays, {"run": self.place.run, "seed": str(self.place.seed)})
