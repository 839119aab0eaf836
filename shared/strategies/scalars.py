"""What a strategy declares of each scalar that leaves a client beside its tensors."""

from __future__ import annotations

from dataclasses import dataclass

from shared.method.ranges import Range


@dataclass(frozen=True)
class Scalar:
    """One declared scalar.

    range: what it may be by its equation; another value is refused. visible: the aggregator needs each client's value,
    so that it is not masked under secure aggregation. returned: clients get its mean back. released: the range that it
    is clipped into before its noise (differential privacy); None: no noise is known for it. compares_spectra: it tells
    how far the shard's spectrum is from the anchor's, so that a client needs the anchor of the round. steady: it
    follows from the shard and the anchor alone, and so is the same in every round of every run with that anchor.
    """

    range: Range
    visible: bool = False
    returned: bool = False
    released: Range | None = None
    compares_spectra: bool = False
    steady: bool = False
