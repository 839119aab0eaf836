"""FedPerGNN: changes of the table are clipped, hidden among invented ones, and noisy."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.method.tensors import ITEM_TABLE
from shared.strategies.fedpergnn import CLIP, PSEUDO_ITEMS, SCALE, fedpergnn, protect_table
from shared.strategies.local_client import LocalClient, Objective

METHOD = MethodSettings(width=8, catalogue=4000)
BEFORE = np.random.default_rng(0).normal(size=(4000, 8)).astype(np.float32)


def trained(change: float) -> np.ndarray:
    """The first 500 rows moved by this much."""
    after = BEFORE.copy()
    after[:500] += np.float32(change)
    return after


def streams(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """The run's choice of pseudo items, and the round's noise."""
    return np.random.default_rng(5), np.random.default_rng(seed)


def test_changes_are_clipped_and_the_noise_is_laplace() -> None:
    sent = protect_table(BEFORE, trained(3.0), *streams(1))
    error = (sent - BEFORE)[:500] - CLIP
    assert abs(error.mean()) < SCALE / 10  # 4,000 draws of deviation sqrt 2 scale: the mean's is scale / 45
    assert np.abs(error).mean() == pytest.approx(SCALE, rel=0.1)  # the mean absolute value of Laplace noise


def test_rows_of_other_items_move_as_well_so_that_a_silo_s_items_are_hidden() -> None:
    sent = protect_table(BEFORE, trained(0.05), *streams(1))
    moved = (sent != BEFORE).any(1)
    assert moved[:500].all() and moved[500:].sum() == PSEUDO_ITEMS
    invented = (sent - BEFORE)[500:][moved[500:]]
    assert invented.mean() == pytest.approx(0.05, abs=0.001)


def test_what_several_rounds_have_in_common_does_not_tell_the_silo_s_items_from_invented_ones() -> None:
    moved = [(protect_table(BEFORE, trained(0.05), *streams(number)) != BEFORE).any(1) for number in (1, 2, 3)]
    assert np.logical_and.reduce(moved).sum() == 500 + PSEUDO_ITEMS


def test_a_table_that_nobody_moved_leaves_as_it_came() -> None:
    np.testing.assert_array_equal(protect_table(BEFORE, BEFORE, *streams(1)), BEFORE)


def test_a_client_trains_with_bpr_and_sends_the_protected_table() -> None:
    client = Mock(spec=LocalClient)
    client.arrays.return_value = {ITEM_TABLE: trained(0.05)}
    client.generator.side_effect = lambda purpose, *, once_a_run=False: np.random.default_rng(
        5 if once_a_run else len(purpose)
    )
    sent = fedpergnn(METHOD).fit(client, Parameters({ITEM_TABLE: BEFORE}))
    client.train.assert_called_once_with(Objective(loss="bpr"))
    expected = protect_table(BEFORE, trained(0.05), *streams(len("table")))
    np.testing.assert_array_equal(sent.arrays[ITEM_TABLE], expected)
    assert sent.arrays[ITEM_TABLE].dtype == np.float32
