"""The study of a silo's bytes iterates as the services do, and counts what they send."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from benchmarks.speed.basis_bytes import FrequencyJudge, Iterations, deal_users, list_ways
from shared.method.settings import method_settings
from shared.strategies.sum_strategy import sum_strategy

ITEMS, RANK = 120, 8


@pytest.fixture(scope="module")
def train() -> sparse.csr_array:
    popularity = 0.7 / np.arange(1, ITEMS + 1) ** 0.5
    drawn = np.random.default_rng(3).random((200, ITEMS)) < popularity
    return sparse.csr_array(drawn.astype(float))


def test_all_rounds_find_more_than_the_last_one_and_sixteen_bits_as_much_as_more(train: sparse.csr_array) -> None:
    made, judge = Iterations(deal_users(train, 4), RANK), FrequencyJudge({"train": train}, RANK)
    last, packed = made.last_round(RANK, 3), made.all_rounds(RANK // 2, 3)
    assert judge.energy(last[0]) < judge.energy(packed[0]) < 1.0
    assert judge.energy(packed[0]) == pytest.approx(
        judge.energy(made.all_rounds_rounded(RANK // 2, 3, 2.0**-16)[0]), abs=1e-3
    )


@pytest.mark.parametrize(("words", "rounds"), [(64, 3), (32, 5)])
def test_bytes_are_those_of_the_declared_tensors(train: sparse.csr_array, words: int, rounds: int) -> None:
    said = {"basis.kind": "iterated", "basis.words": words, "basis.rounds": rounds, "catalogue": 1000}
    method = method_settings(**said)
    tensors = sum_strategy(method).declaration(method).tensors
    ways = {way.name: way for way in list_ways(Iterations(deal_users(train, 4), 128)) if way.rounds == rounds}
    found = ways[f"**all rounds, basis.words = {words}**"]
    assert found.bytes == rounds * sum(spec.form.bytes for spec in tensors) / 1000
