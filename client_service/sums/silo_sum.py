"""Record of a sum at a silo: its part, its result, its use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from client_service.models.closed_form.scorer_part import Scorer
from client_service.models.initial_filter import CommonSpectrum
from shared.errors import ProtocolError
from shared.method.declaration import Counts
from shared.method.run_memory import Cost
from shared.method.settings import MethodSettings
from shared.sums import find_sum
from shared.sums.sum import Sum

Sums = dict[str, NDArray[np.uint32]]
Arrays = Mapping[str, NDArray[Any]]
FIXED_BYTES = 40e6  # of code that the first run of a sum loads


class SummedDigests(NamedTuple):
    """Digests of a silo's part in a sum.

    training: of its training data, unchanged as long as they are. catalogue: of the list over which they are counted,
    the same in all silos, or EMPTY_PART_DIGEST where the part is zeros. all_data: of all data that the sum follows
    from, where some sums count held-out data; "": the training digest of all its data.
    """

    training: str
    catalogue: str
    all_data: str = ""


@dataclass(frozen=True, eq=False)
class Statistics:
    """Result of a sum: arrays that are the same in every silo.

    kind: the entry of SILO_SUMS that reads and uses it. added_all_data: has this silo added its validation and test
    data too? included: has it added anything? Not if it joined after the sums were made. Each silo knows both of
    itself alone; the digest is the same in all.
    """

    kind: str
    added_all_data: bool = field(default=False, kw_only=True)
    included: bool = field(default=True, kw_only=True)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Returns the arrays by name, without missing ones."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}

    def metadata(self) -> dict[str, str]:
        """Returns the metadata that are kept beside the arrays."""
        return {"kind": self.kind}

    def over(self, items: Any) -> Self:
        """Returns the statistics over a list of common items; raises ProtocolError without items."""
        del items
        raise ProtocolError(f"expected sums over a list of common items to be of a basis, got {self.kind!r}")

    @property
    def size(self) -> int:
        """Rows of its first array: the items of the catalogue."""
        return len(next(iter(self.arrays().values())))

    @property
    def directions(self) -> int | None:
        """Number of directions in which the sums are known; None for all."""
        return None

    @cached_property
    def digest(self) -> str:
        """sha256 over its content."""
        total = hashlib.sha256(" ".join(self.metadata().values()).encode())
        for name, value in sorted(self.arrays().items()):
            total.update(f"{name}{value.shape}{value.dtype.str}".encode())
            total.update(np.ascontiguousarray(value).data)
        return total.hexdigest()


class SumRound(NamedTuple):
    """A round of a run that sums.

    counted: the shard's counts, made by `SiloSum.count`. seed: of the run. clients: number of parts that a sum has room
    for. number: of this round. sums: of rounds before, by their number; of the last rounds at the end of a run.
    federation: the key of its aggregator, which all silos pin. included: does the run's sum hold this silo's part?
    over: what the sums of another part have become, over which this one counts (`Sum.base_part`). secret: of the silo,
    for this run, which nobody else can make.
    """

    counted: Any
    method: MethodSettings
    seed: int
    clients: int
    number: int
    sums: Mapping[int, Sums]
    federation: str = ""
    included: bool = True
    over: Statistics | None = None
    secret: bytes = b""


def cannot_subtract(method: MethodSettings) -> bool:
    """Returns False: a silo cannot subtract its own part from the result."""
    del method
    return False


def no_scorers(known: Any, shard: Any) -> tuple[Scorer, ...]:
    """Returns no scorers to fuse with the trained score."""
    del known, shard
    return ()


def share_listed(known: Any, shard: Any) -> float:
    """Computes the share of the training pairs whose items are in the catalogue."""
    del known
    if shard.places is None or not shard.train.nnz:
        return 1.0
    return float(np.mean(shard.places[shard.train.indices] >= 0))


def use_own_graph(known: Any, shard: Any, method: MethodSettings) -> CommonSpectrum | None:
    """Returns None: the result has no frequencies of all silos' graph."""
    del known, shard, method
    return None


def no_warnings(method: MethodSettings) -> tuple[str, ...]:
    """Returns no warnings."""
    del method
    return ()


def cost_of_tensors(method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the cost of a few copies of the sent tensors."""
    del shard
    chosen = find_sum(method)
    sent = sum(float(np.prod(one.shape)) for one in chosen.list_tensors(method))
    kept = 4.0 * sent * chosen.sums_needed(method.basis)
    return [Cost("the sums", FIXED_BYTES + kept), Cost(f"{chosen.statistics} ({sent:,.0f} numbers)", 24.0 * sent, sent)]


def no_memory(method: MethodSettings) -> float:
    """Returns 0: the result takes almost no memory."""
    del method
    return 0.0


@dataclass(frozen=True)
class SiloSum:
    """The half of a sum that only a silo computes; `declared` is the other half.

    task: task whose shards are counted.
    count: (shard, settings) -> what the part of every round follows from; slow.
    digests: (shard, settings) -> digests of what is counted, and of the list or other data that must be the same in all
    silos. Equal data have equal digests, so that no two sums differ by a few silos.
    add: (round) -> this silo's part, by the declared tensors.
    finish: (last round) -> `Statistics`; ProtocolError for sums that no data can have.
    load: (arrays, metadata) -> the same statistics from the disk.
    may_add_all_data: may a silo that fits its models on all data add validation and test data? Only if it can subtract
    them again.
    scorers: (statistics, shard) -> closed-form scorers, fused with the trained score.
    start: (statistics, shard, settings) -> the frequencies where training begins.
    costs, use_bytes, warnings: cost of a run, memory of the use, and warnings to the silo's operator before a run.
    nothing: reason why a part may be zeros (EMPTY_PART_DIGEST).
    complete: (statistics, shard, the silo's secret of the run) -> the shard with what the sum tells of it, over which
    later runs count and train; None: nothing.
    """

    declared: Sum
    task: str
    count: Callable[[Any, MethodSettings], Any]
    digests: Callable[[Any, MethodSettings], SummedDigests]
    add: Callable[[SumRound], Sums]
    finish: Callable[[SumRound], Statistics]
    load: Callable[[Arrays, Mapping[str, str]], Statistics]
    may_add_all_data: Callable[[MethodSettings], bool] = cannot_subtract
    scorers: Callable[[Any, Any], tuple[Scorer, ...]] = no_scorers
    covered_share: Callable[[Any, Any], float] = share_listed
    start: Callable[[Any, Any, MethodSettings], CommonSpectrum | None] = use_own_graph
    costs: Callable[[MethodSettings, Counts], list[Cost]] = cost_of_tensors
    use_bytes: Callable[[MethodSettings], float] = no_memory
    warnings: Callable[[MethodSettings], tuple[str, ...]] = no_warnings
    complete: Callable[[Any, Any, bytes], Any] | None = None
    nothing: str = "this silo has nothing to add"
