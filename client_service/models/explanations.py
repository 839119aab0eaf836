"""A basket and items that were ranked for it -> what each item of the basket contributes to each of their scores.

Exact for the parts of a fused score that are sums over the basket's items: the closed forms that look at a basket. The
trained score and the items' frequencies are none, and are left out.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from client_service.models.ranker import Ranker, Rows, Side
from client_service.models.score_fusion import deviation
from shared.method.parameters import Float32


@runtime_checkable
class BasketSum(Protocol):
    """A scorer whose scores of a basket are sums over its items."""

    def contributions(self, basket: Rows, columns: Rows) -> Float32:
        """What each item of a basket (b,) adds to the scores of the items `columns` (n,), (b, n)."""
        ...


def contributions(ranker: Ranker, user: Side, basket: Rows, columns: Rows) -> Float32 | None:
    """The same of all such parts as loud as they are in the score of this user (one row), (b, n).

    basket: the items of which `user` has its codes. None where the score has no such part, or the basket no item.
    """
    parts = [
        (loudness, part, code)
        for (loudness, part), code in zip(ranker.fusion.parts, user.codes, strict=True)
        if isinstance(part, BasketSum)
    ]
    if not ranker.residual or not parts or len(basket) == 0:
        return None
    spread = float(deviation(user.embedding @ ranker.items.embedding.T)[0, 0]) or 1.0  # as the fusion itself has it
    total = np.zeros((len(basket), len(columns)), dtype=np.float32)
    for loudness, part, code in parts:
        size = float(deviation(part.decode(code))[0, 0])
        if size > 0:
            total += np.float32(loudness * spread / size) * part.contributions(basket, columns)
    return total
