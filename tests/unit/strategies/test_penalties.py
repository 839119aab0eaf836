"""What strategies add to the loss, each by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from shared.method.tensors import ITEM_TABLE
from shared.strategies.fedmf import REGULARISATION, l2_penalty
from shared.strategies.fedprox import ProximalPenalty
from shared.strategies.fedpub import masks_and_distance
from shared.strategies.fedrap import AdditivePenalty, FedRAPSettings

POOLING, PREDICTIVE = "pooling.output.bias", "predictive.output.bias"
USERS = np.array([[3.0, 4.0], [0.0, 1.0]])
Arrays = dict[str, Any]
BY_HAND: dict[str, tuple[Any, Arrays, Arrays, float]] = {  # mu / 2 is .005; what is private and not named is left alone
    "fedprox": (
        ProximalPenalty(0.01),
        {POOLING: np.array([3.0, 1.0]), PREDICTIVE: np.array([2.0]), "embedding": np.array([9.0])},
        {POOLING: np.array([1.0, 1.0]), PREDICTIVE: np.array([-1.0])},
        0.005 * (4.0 + 0.0 + 9.0),
    ),
    # |1| + |-2| over 2 entries; ((3 - 1)^2 + (0 + 2)^2) / 2 = 4
    "fedrap": (
        AdditivePenalty(FedRAPSettings(sparsity=0.02, distance=0.01)),
        {ITEM_TABLE: np.array([[1.0, -2.0]]), "personal": np.array([[3.0, 0.0]])},
        {},
        0.02 * 1.5 - 0.01 * 4.0,
    ),
    # mean squared lengths of both sides
    "fedmf": (l2_penalty, {"embedding": USERS, ITEM_TABLE: np.array([[2.0, 0.0]])}, {}, REGULARISATION * (13.0 + 4.0)),
    # 1e-3 (2 + .5) + 1e-3 ((3 - 1)^2 + 0)
    "fedpub": (
        masks_and_distance,
        {POOLING: np.array([3.0, 1.0]), "mask.pooling.hidden.weight": np.array([-2.0, 0.5]), "embedding": np.ones(9)},
        {POOLING: np.array([1.0, 1.0])},
        0.0025 + 0.004,
    ),
}


@pytest.mark.parametrize(("penalty", "own", "received", "expected"), BY_HAND.values(), ids=BY_HAND)
def test_a_penalty_by_hand(penalty: Any, own: Arrays, received: Arrays, expected: float) -> None:
    assert penalty(own, received) == pytest.approx(expected)
