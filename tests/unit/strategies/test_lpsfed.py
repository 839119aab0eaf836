"""LPSFed: the client sends both MLPs, rho and its mean margin; the answer is its own mixture.

Eq. 12-14 by hand are in tests/unit/equations/test_similarity_personalise.py.
"""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from shared.method.parameters import Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.lpsfed import RecentSimilarities, lpsfed, similarities

NAME = "predictive.output.bias"
START = State({NAME: np.zeros(1, dtype=np.float32)})


def update(client: str, value: float, **scalars: float) -> Update:
    return Update(client, {NAME: np.array([value], dtype=np.float32)}, scalars)


FAR_APART = [update("a", 0.0, rho=0.1, margin=0.2), update("b", 4.0, rho=0.9, margin=0.6)]


@pytest.mark.parametrize(
    ("rho", "scalars"),
    [(0.4, {"margin": 0.7, "rho": 0.4}), (0.0, {"margin": 0.7, "rho": 0.0}), (None, {"margin": 0.7})],
)
def test_a_client_trains_bias_aware_and_then_sends_margin_and_rho_if_it_has_one(
    rho: float | None, scalars: dict[str, float]
) -> None:
    client = Mock(spec=LocalClient)
    measures = {"mean_margin": (0.7,), "divergence": () if rho is None else (rho,)}
    client.measure.side_effect = measures.__getitem__
    sent = lpsfed(MethodSettings()).fit(client, Parameters({}))
    order = [call[0] for call in client.method_calls]
    assert order[:2] == ["load", "train"] and sorted(order[2:]) == ["arrays", "measure", "measure"]
    client.train.assert_called_once_with(Objective(bias_aware=True))
    assert sent.arrays is client.arrays.return_value and dict(sent.scalars) == scalars


def test_the_divergence_itself_is_never_handed_out() -> None:
    strategy = lpsfed(MethodSettings())
    state = strategy.aggregate(START, FAR_APART)
    assert all("rho" not in strategy.personalise(state, one).scalars for one in (*FAR_APART, None))


def test_before_anybody_sent_a_margin_none_is_handed_out() -> None:
    assert dict(lpsfed(MethodSettings()).personalise(START, None).scalars) == {}


def test_similarities_are_computed_once_for_the_same_scalars_and_anew_for_others() -> None:
    recent = RecentSimilarities()
    first, second = {"a": {"rho": 0.1}, "b": {"rho": 0.9}}, {"a": {"rho": 0.9}, "b": {"rho": 0.1}}
    found = recent.similarities(first, 0.0)
    assert found == similarities(first) and recent.similarities(first, 0.0) is found
    assert recent.similarities(second, 0.0) == {"a": 0.0, "b": 1.0}
    assert recent.similarities(second, 0.5) == {"a": 0.5, "b": 1.0}
