"""FedHGNN: item table and semantic attention leave; the attention is averaged plainly, the table over its movers."""

from __future__ import annotations

import numpy as np

from shared.method.parameters import State, Update
from shared.method.settings import MethodSettings
from shared.method.tensors import ITEM_TABLE
from shared.strategies.fedhgnn import fedhgnn

METHOD = MethodSettings(width=2, catalogue=2)
FEDHGNN = fedhgnn(METHOD)
QUERY = "attention.user.query"


def arrays(query: float, rows: list[list[float]]) -> dict[str, np.ndarray]:
    return {QUERY: np.full((1, 2), query, dtype=np.float32), ITEM_TABLE: np.array(rows, dtype=np.float32)}


def test_table_and_attention_of_both_sides_are_declared() -> None:
    shapes = {spec.name: spec.shape for spec in FEDHGNN.declaration(METHOD).tensors}
    sides = {f"attention.{side}" for side in ("user", "item")}
    parts = {"weight": (2, 2), "bias": (2,), "query": (1, 2)}
    assert shapes == {f"{side}.{part}": shape for side in sides for part, shape in parts.items()} | {ITEM_TABLE: (2, 2)}


def test_attention_is_averaged_over_all_and_the_table_over_its_movers() -> None:
    before = State(arrays(0.0, [[0.0, 0.0], [0.0, 0.0]]))
    updates = [
        Update("a", arrays(0.0, [[4.0, 0.0], [0.0, 0.0]]), {}),
        Update("b", arrays(1.0, [[0.0, 0.0], [0.0, 0.0]]), {}),
    ]
    state = FEDHGNN.aggregate(before, updates)
    assert state.arrays[QUERY].tolist() == [[0.5, 0.5]]
    assert state.arrays[ITEM_TABLE].tolist() == [[4.0, 0.0], [0.0, 0.0]]
