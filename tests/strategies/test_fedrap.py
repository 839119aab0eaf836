"""FedRAP: the common part is held sparse and away from the personal part, and leaves alone."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from shared.method.exchange import ITEM_TABLE
from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.fedrap import AdditivePenalty, FedRAPSettings, fedrap
from shared.strategies.local_client import LocalClient, Objective

METHOD = MethodSettings(width=2, catalogue=3)


def test_the_penalty_by_hand() -> None:
    own = {ITEM_TABLE: np.array([[1.0, -2.0]]), "personal": np.array([[3.0, 0.0]])}
    # |1| + |-2| over 2 entries; ((3 - 1)^2 + (0 + 2)^2) / 2 = 4.
    penalty = AdditivePenalty(FedRAPSettings(sparsity=0.02, distance=0.01))
    assert penalty(own, {}) == pytest.approx(0.02 * 1.5 - 0.01 * 4.0)


def test_a_client_trains_with_the_penalty_and_sends_what_is_common() -> None:
    client, received = Mock(spec=LocalClient), Parameters({})
    sent = fedrap(METHOD).fit(client, received)
    client.load.assert_called_once_with(received)
    client.train.assert_called_once_with(Objective(loss="bce", penalty=AdditivePenalty(FedRAPSettings())))
    assert sent.arrays is client.arrays.return_value
    assert [spec.name for spec in fedrap(METHOD).declaration(METHOD).tensors] == [ITEM_TABLE]
