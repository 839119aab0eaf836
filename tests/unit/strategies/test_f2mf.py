"""F2MF: two noisy group losses leave, and the group with the larger loss counts more in the next round."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from shared.method.parameters import Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.method.tensors import ITEM_TABLE
from shared.strategies.f2mf import GROUPS, NOISE, F2MFSettings, f2mf, group_weights
from shared.strategies.fedmf import l2_penalty
from shared.strategies.local_client import LocalClient, Objective

F2MF = f2mf(MethodSettings(width=2, catalogue=1))
SETTINGS, STRENGTH = F2MFSettings(), 0.5
TABLE = {ITEM_TABLE: np.ones((1, 2), dtype=np.float32)}


def test_the_group_with_the_larger_loss_counts_more() -> None:
    assert group_weights({"lighter": 0.7, "heavier": 0.4}, SETTINGS) == (1.0 + STRENGTH, 1.0 - STRENGTH)
    assert group_weights({"lighter": 0.4, "heavier": 0.7}, SETTINGS) == (1.0 - STRENGTH, 1.0 + STRENGTH)
    assert group_weights({"lighter": 0.4, "heavier": 0.4}, SETTINGS) == group_weights({}, SETTINGS) == (1.0, 1.0)


def test_another_power_makes_the_weights_follow_the_gap() -> None:
    # 1 + .5 * 2 * .3 for the worse group, whose loss is larger by .3.
    assert group_weights({"lighter": 0.7, "heavier": 0.4}, F2MFSettings(power=2.0)) == pytest.approx((1.3, 0.7))


def test_a_client_trains_weighted_and_sends_two_noisy_losses() -> None:
    client = Mock(spec=LocalClient)
    client.arrays.return_value = TABLE
    client.measure.return_value = (0.5, 0.75)
    client.generator.return_value = np.random.default_rng(4)
    sent = F2MF.fit(client, Parameters(TABLE, {"lighter": 0.9, "heavier": 0.1}))
    client.train.assert_called_once_with(
        Objective(loss="bpr", penalty=l2_penalty, group_weights=(1.0 + STRENGTH, 1.0 - STRENGTH))
    )
    noise = np.random.default_rng(4).normal(0.0, NOISE, 2)
    assert sent.scalars == {"lighter": 0.5 + noise[0], "heavier": 0.75 + noise[1]}
    assert all(type(value) is float for value in sent.scalars.values())


def test_everybody_gets_the_mean_loss_of_each_group() -> None:
    updates = [
        Update("a", TABLE, {"lighter": 1.0, "heavier": 2.0}),
        Update("b", TABLE, {"lighter": 3.0, "heavier": 6.0}),
    ]
    state = F2MF.aggregate(State(TABLE), updates)
    assert dict(F2MF.personalise(state, None).scalars) == {"lighter": 2.0, "heavier": 4.0}
    assert tuple(F2MF.scalars) == GROUPS
