"""Steps 10 and 11 (Eq. 12-14): similarity to the anchor, the mean, and each client's mixture of mean and own."""

from __future__ import annotations

import numpy as np
import pytest

from shared.method.parameters import State, Update
from shared.method.settings import MethodSettings
from shared.strategies.lpsfed import lpsfed, similarities

NAME = "pooling.output.weight"
RHO = {"near": 0.1, "middle": 0.2, "far": 0.5}
# min-max: (.1 - .1) / .4 = 0, (.2 - .1) / .4 = .25, (.5 - .1) / .4 = 1; rhobar is 1 minus that.
RHOBAR = {"near": 1.0, "middle": 0.75, "far": 0.0}


def update(client: str, values: list[float], **scalars: float) -> Update:
    return Update(client, {NAME: np.array(values, dtype=np.float32)}, scalars)


UPDATES = (
    update("near", [1.0, 0.0], rho=0.1, margin=0.3),
    update("middle", [2.0, 4.0], rho=0.2, margin=0.6),
    update("far", [6.0, -1.0], rho=0.5, margin=1.5),
)
EMPTY = State({NAME: np.zeros(2, dtype=np.float32)})


def test_the_nearest_client_has_similarity_one_and_the_farthest_zero() -> None:
    assert similarities({client: {"rho": rho} for client, rho in RHO.items()}) == pytest.approx(RHOBAR)


def test_equal_divergences_are_all_similar() -> None:
    assert similarities({"a": {"rho": 0.4}, "b": {"rho": 0.4}}) == {"a": 1.0, "b": 1.0}


def test_one_client_is_similar() -> None:
    assert similarities({"a": {"rho": 0.4}}) == {"a": 1.0}
    assert similarities({}) == {}


def test_a_client_without_a_divergence_is_similar_and_moves_nobody() -> None:
    latest = {client: {"rho": rho} for client, rho in RHO.items()} | {"short": {"margin": 0.2}}
    assert similarities(latest) == pytest.approx(RHOBAR | {"short": 1.0})


def test_the_floor_is_the_least_similarity_and_changes_no_larger_one() -> None:
    latest = {client: {"rho": rho} for client, rho in RHO.items()}
    assert similarities(latest, 0.3) == pytest.approx({"near": 1.0, "middle": 0.75, "far": 0.3})
    assert similarities(latest, 1.0) == {"near": 1.0, "middle": 1.0, "far": 1.0}


def test_the_mean_counts_every_client_alike() -> None:
    # (1 + 2 + 6) / 3 = 3, (0 + 4 - 1) / 3 = 1; margin (.3 + .6 + 1.5) / 3 = .8.
    state = lpsfed(MethodSettings()).aggregate(EMPTY, UPDATES)
    assert state.arrays[NAME].tolist() == [3.0, 1.0]
    assert state.scalars["margin"] == pytest.approx(0.8)
    assert state.latest == {u.client: u.scalars for u in UPDATES}


@pytest.mark.parametrize(
    ("sender", "values", "margin"),
    [
        (0, [3.0, 1.0], 0.8),  # rhobar 1: the mean
        (1, [2.75, 1.75], 0.75),  # .75 * 3 + .25 * 2 = 2.75; .75 * 1 + .25 * 4 = 1.75; .75 * .8 + .25 * .6 = .75
        (2, [6.0, -1.0], 1.5),  # rhobar 0: its own
    ],
)
def test_a_client_gets_as_much_of_the_mean_as_it_is_similar(sender: int, values: list[float], margin: float) -> None:
    strategy = lpsfed(MethodSettings())
    answer = strategy.personalise(strategy.aggregate(EMPTY, UPDATES), UPDATES[sender])
    assert answer.arrays[NAME].tolist() == pytest.approx(values)
    assert dict(answer.scalars) == pytest.approx({"margin": margin})


def test_the_farthest_client_learns_from_others_as_much_as_the_floor_says() -> None:
    strategy = lpsfed(MethodSettings(similarity_floor=0.5))
    answer = strategy.personalise(strategy.aggregate(EMPTY, UPDATES), UPDATES[2])
    # .5 * 3 + .5 * 6 = 4.5; .5 * 1 - .5 * 1 = 0; .5 * .8 + .5 * 1.5 = 1.15.
    assert answer.arrays[NAME].tolist() == pytest.approx([4.5, 0.0])
    assert dict(answer.scalars) == pytest.approx({"margin": 1.15})


def test_a_client_that_never_sent_gets_the_mean() -> None:
    strategy = lpsfed(MethodSettings())
    answer = strategy.personalise(strategy.aggregate(EMPTY, UPDATES), None)
    assert answer.arrays[NAME].tolist() == [3.0, 1.0]
    assert dict(answer.scalars) == pytest.approx({"margin": 0.8})


def test_a_client_that_was_away_mixes_the_new_mean_with_its_last_update() -> None:
    strategy = lpsfed(MethodSettings())
    first = strategy.aggregate(EMPTY, UPDATES)
    second = strategy.aggregate(first, [update("near", [9.0, 9.0], rho=0.1, margin=0.2)])
    # Only `near` sent: the mean is [9, 9]. `middle` is still at rho .2 among .1, .2, .5: .75 * 9 + .25 * 2 = 7.25.
    answer = strategy.personalise(second, UPDATES[1])
    assert answer.arrays[NAME].tolist() == pytest.approx([7.25, 7.75])
