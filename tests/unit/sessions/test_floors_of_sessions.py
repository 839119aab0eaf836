"""Floors, worked by hand."""

from __future__ import annotations

import numpy as np

from client_service.data.prefixes import Prefixes, list_prefixes
from client_service.evaluation.session_ranking import build_floors

A, B, C, D = range(4)


def test_repeats_put_the_visit_s_own_items_first_the_last_click_before_all() -> None:
    examples = Prefixes(np.array([A, B, A, C, B, D]), np.array([0, 4]), np.array([3, 5]))
    [first, second] = build_floors(np.array([A, B]), np.array([0, 2]), 4)["repeats"](examples)
    assert first.tolist() == [3, 2, 0, 0] and second.tolist() == [0, 1, 0, 0]


def test_successors_are_those_of_the_last_click_within_a_session() -> None:
    clicks, starts = np.array([A, B, A, B, B, C]), np.array([0, 2, 6])
    score = build_floors(clicks, starts, 4)["successors"]
    found = score(list_prefixes(np.array([A, B, D]), np.array([0, 3])))
    assert found.tolist() == [[0, 2, 0, 0], [0, 1, 1, 0]]
