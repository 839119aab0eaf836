"""FedMF: the item table alone leaves, and a row is averaged over those who moved it."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from shared.errors import SettingsError
from shared.method.parameters import State, Update
from shared.method.settings import MethodSettings
from shared.method.tensors import ITEM_TABLE, initial_parameters, table_specification
from shared.strategies.fedmf import fedmf

METHOD = MethodSettings(width=2, catalogue=3)
FEDMF = fedmf(METHOD)
BEFORE = State({ITEM_TABLE: np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]], dtype=np.float32)})


def update(client: str, table: list[list[float]]) -> Update:
    return Update(client, {ITEM_TABLE: np.array(table, dtype=np.float32)}, {})


UPDATES = [
    update("a", [[2.0, 1.0], [2.0, 2.0], [3.0, 3.0]]),
    update("b", [[5.0, 4.0], [8.0, 2.0], [3.0, 3.0]]),
    update("c", [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]),
]


def test_rows_that_a_client_has_not_moved_do_not_dilute_the_others() -> None:
    # Row 0: a changes by (1, 0), b by (4, 3): + (2.5, 1.5). Row 1: b alone, + (6, 0). Row 2: nobody.
    for order in permutations(UPDATES):
        state = FEDMF.aggregate(BEFORE, order)
        assert state.arrays[ITEM_TABLE].tolist() == [[3.5, 2.5], [8.0, 2.0], [3.0, 3.0]]
        assert state.arrays[ITEM_TABLE].dtype == np.float32
    plain = np.mean([one.arrays[ITEM_TABLE] for one in UPDATES], axis=0)  # the paper's, which differs
    assert plain[1].tolist() == [4.0, 2.0]


def test_without_a_catalogue_there_is_no_item_table() -> None:
    with pytest.raises(SettingsError, match="catalogue"):
        FEDMF.declaration(MethodSettings())


def test_an_item_table_starts_normal_however_long_it_is() -> None:
    method = MethodSettings(width=16, catalogue=4000)
    table = initial_parameters(table_specification(method), 0, exact=True)[ITEM_TABLE]
    assert table.shape == (4000, 16) and table.dtype == np.float32
    assert table.std() == pytest.approx(0.1, rel=0.02) and abs(table.mean()) < 0.002
