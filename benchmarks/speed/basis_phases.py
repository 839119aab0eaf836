"""Seconds, bytes and peak memory of each phase of a basis run, on generated data.

count: a silo's pairs, or its products of one round. mask: its own mask and one for each other silo. upload: the body
that it writes, and the aggregator's check of the spooled one. sum: all bodies, tensor by tensor and block by block
from the disk, with the masks removed. finish: the common basis from the sums, at each silo. Seconds have their ratio
to a calibration of the same run, so that two machines can be compared. The phases are the functions that the services
call, without their messages. Memory is the allocation of numpy and Python beyond that at the start of the phase. All
silos but the first send the first one's numbers under masks of their own. With --words (basis.words) the round is a
later one, and the same sums stand for those of all rounds but the first.

python -m benchmarks.speed.basis_phases [--clients 4 64] [--items 3700 40000] [--rank 128] [--rounds 3] [--words 64]
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TypeVar

import numpy as np
from scipy import sparse

from benchmarks.speed.secure_round import calibrate_processor
from client_service.sums.basis import CommonBasis, make_basis_of_last_round, make_exact_basis, make_iterated_basis
from client_service.sums.statistics import begin_sums, count_pairs, encode_sums, pack_sums, raw_products
from client_service.sums.subspace_iteration import explore, first_directions, start_directions
from shared.method.declaration import Declaration
from shared.method.parameters import Array, Arrays, Parameters
from shared.method.settings import MethodSettings, method_settings
from shared.protocol.masked_wire import encode_masked, open_masked
from shared.protocol.secure import server, vectors
from shared.protocol.secure.messages import MaskedHeader
from shared.protocol.secure.vectors import MaskedUpdate, MaskStream
from shared.strategies.sum_strategy import sum_strategy
from shared.sums import find_sum
from shared.sums.item_basis import DEGREES, MOST_EXACT
from shared.sums.sum import UInt32

USERS, RECORDS = 1000, 60  # of one silo, and of one of its users
MIB = 1 << 20
Found = TypeVar("Found")


@dataclass(frozen=True)
class MeasuredPhase:
    """Measurements of one phase; bytes: of its output, 0 if that is not sent."""

    name: str
    seconds: float
    mib: float
    bytes: int = 0

    def text(self, unit: float) -> str:
        """Formats one line; unit: seconds of the calibration."""
        sent = f"; {self.bytes:,} bytes" if self.bytes else ""
        took = f"{self.seconds:8.2f} s ({self.seconds / unit:7.2f} of the calibration)"
        return f"  {self.name:7} {took}, {self.mib:8.1f} MiB{sent}"


def watch(work: Callable[[], Found]) -> tuple[Found, float, float]:
    """Runs work; returns its result, seconds, and peak memory (MiB) beyond the start."""
    tracemalloc.reset_peak()
    before, began = tracemalloc.get_traced_memory()[0], time.perf_counter()
    found = work()
    seconds = time.perf_counter() - began
    return found, seconds, (tracemalloc.get_traced_memory()[1] - before) / MIB


@dataclass(frozen=True)
class MadeFederation:
    """Generated silos with one list of items, and the folder of their bodies."""

    clients: int
    method: MethodSettings
    folder: Path

    @property
    def names(self) -> list[str]:
        """Names of the silos, in order."""
        return [f"silo-{number:04d}" for number in range(self.clients)]

    @property
    def declaration(self) -> Declaration:
        """Declaration of a basis run."""
        return sum_strategy(self.method).declaration(self.method)

    def draw_records(self) -> sparse.csr_array:
        """Draws one silo's pairs; items of low number are more popular."""
        items, generator = self.method.catalogue, np.random.default_rng(0)
        columns = (items * generator.random(USERS * RECORDS) ** 3).astype(np.int64)
        pairs = sparse.coo_array(
            (np.ones(columns.size), (np.repeat(np.arange(USERS), RECORDS), columns)), (USERS, items)
        )
        found = sparse.csr_array(pairs)
        found.data[:] = 1.0
        return found

    def count(self, records: sparse.csr_array) -> Arrays:
        """Computes one silo's part of a round."""
        basis = self.method.basis
        if basis.kind == "exact":
            return count_pairs(records)
        if basis.words is not None:
            return pack_sums(records, explore([self.first_sums], basis.exponent, 0))
        directions = start_directions(0, self.method.catalogue, basis.rank)
        return encode_sums(records, raw_products(records, directions, basis.exponent), self.clients)

    @cached_property
    def first_sums(self) -> dict[str, UInt32]:
        """Sums of the first round with basis.words; else empty."""
        basis, records = self.method.basis, self.draw_records()
        if basis.words is None:
            return {}
        start = first_directions(0, self.method.catalogue, basis.words)
        sums = begin_sums(records, start, basis.exponent, self.clients)
        return {name: one * np.uint32(self.clients) for name, one in sums.items()}

    def masks_of(self, name: str) -> Iterator[MaskStream]:
        """Yields a silo's own mask, and those shared with all others."""
        yield MaskStream(_seed(name), 1)
        pairs = (pair for pair in combinations(self.names, 2) if name in pair)
        for first, second in pairs:
            other = second if name == first else first
            yield MaskStream(_seed(first, second), vectors.mask_sign(name, other))

    def mask(self, name: str, arrays: Arrays) -> MaskedUpdate:
        """Masks a silo's part."""
        encoded = vectors.encode_vector(self.declaration, Parameters(arrays))
        masked = vectors.mask_vector(vectors.vector_layout(self.declaration), encoded, tuple(self.masks_of(name)))
        header = MaskedHeader(run="run-1", round=1, client=name, digest=vectors.digest_vector(masked), scalars={})
        return MaskedUpdate(header, masked)

    def upload(self, name: str, update: MaskedUpdate) -> int:
        """Writes a body and checks it as the aggregator does; returns its bytes."""
        body, path = encode_masked(update), self.folder / name
        path.write_bytes(body)
        open_masked(self.declaration, path)
        return len(body)

    def sum(self) -> Arrays:
        """Sums all bodies on the disk, removes the own masks and hides rare pairs."""
        held = [open_masked(self.declaration, self.folder / name).vector for name in self.names]
        own, sums = [MaskStream(_seed(name), -1) for name in self.names], dict[str, Array]()
        layout = vectors.vector_layout(self.declaration)
        for piece, names in enumerate(vectors.mask_pieces(layout)):
            total = np.concatenate([server.sum_tensor(name, layout[name], held) for name in names])
            vectors.add_masks_in_place(total, own, piece=piece)
            sums |= vectors.split_piece(layout, names, total)
        return find_sum(self.method).hand_out(self.method, sums)

    def finish(self, sums: Arrays) -> CommonBasis:
        """Computes the basis that a silo keeps."""
        basis, found = self.method.basis, {name: np.asarray(one) for name, one in sums.items()}
        if basis.kind == "exact":
            return make_exact_basis(found, basis.exponent)
        if basis.words is not None:
            known = explore([self.first_sums, *[found] * (basis.rounds - 1)], basis.exponent, 0)
            return make_iterated_basis(known, found[DEGREES], basis.rank)
        return make_basis_of_last_round(found, start_directions(0, self.method.catalogue, basis.rank), basis.exponent)


def _seed(*names: str) -> bytes:
    return hashlib.sha256(" ".join(names).encode()).digest()


def measure_phases(federation: MadeFederation) -> list[MeasuredPhase]:
    """Measures each phase of one round.

    Other silos' bodies are made before the sum, and not counted.
    """
    _ = federation.first_sums  # of a round that is over
    tracemalloc.start()
    records, first = federation.draw_records(), federation.names[0]
    arrays, *counted = watch(lambda: federation.count(records))
    update, *masked = watch(lambda: federation.mask(first, arrays))
    size, *uploaded = watch(lambda: federation.upload(first, update))
    for name in federation.names[1:]:
        federation.upload(name, federation.mask(name, arrays))
    sums, *added = watch(federation.sum)
    _, *finished = watch(lambda: federation.finish(sums))
    tracemalloc.stop()
    names = ("count", "mask", "upload", "sum", "finish")
    spent = (counted, masked, uploaded, added, finished)
    return [MeasuredPhase(n, *took, size if n == "upload" else 0) for n, took in zip(names, spent, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 64])
    parser.add_argument("--items", type=int, nargs="+", default=[3700, 40_000])
    parser.add_argument("--rank", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3, help="of an iterated basis, for the bytes of the whole run")
    parser.add_argument("--words", type=int, help="of an iterated basis that follows from all rounds")
    given = parser.parse_args()
    for clients in given.clients:
        for items in given.items:
            kind = "exact" if items <= MOST_EXACT else "iterated"
            changes = {"basis.kind": kind, "basis.rank": given.rank, "basis.rounds": given.rounds, "catalogue": items}
            if given.words is not None and kind == "iterated":
                changes["basis.words"] = given.words
            method = method_settings(**changes)
            unit = calibrate_processor() / 1000
            with tempfile.TemporaryDirectory() as folder:
                phases = measure_phases(MadeFederation(clients, method, Path(folder)))
            rounds = find_sum(method).rounds(method.basis)
            sent = rounds * sum(phase.bytes for phase in phases)
            print(f"{clients} silos, {items:,} items, {kind}: {rounds} rounds, {sent:,} bytes up a silo in all")
            print("\n".join(phase.text(unit) for phase in phases), flush=True)


if __name__ == "__main__":
    main()
