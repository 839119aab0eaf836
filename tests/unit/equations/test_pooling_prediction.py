"""Step 3 (Eq. 4, 5): the pooling MLP, the predictive MLP on [u, v, u * v], and cos R = tanh f.

Expected values come from plain Python sums over the written-out weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from scipy import sparse
from torch import Tensor, nn

from client_service.models.encoders import lgcn
from client_service.models.initial_filter import Filter, build_start
from client_service.models.model import Model, ModelInputs, Pooled
from client_service.training.losses import angle
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum

METHOD = MethodSettings(width=2, layers=1, cutoff=3)
GRAPH = sparse.csr_array([[1.0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]])
POOLING = {
    "hidden": ([[0.5, -1.0, 0.25, 2.0], [1.0, 0.5, -0.5, 0.0]], [0.1, -0.2]),
    "output": ([[1.5, -0.5], [0.25, 1.0]], [0.3, 0.0]),
}
PREDICTIVE = {
    "hidden": ([[0.4, -0.3, 0.2, 0.1, 1.0, -0.6], [-0.7, 0.8, 0.3, -0.2, 0.5, 0.9]], [0.05, -0.15]),
    "output": ([[0.9, -1.1]], [0.2]),
}
USERS, ITEMS = [[0.3, -0.5, 0.7], [1.2, 0.4, -0.1]], [[0.6, 0.2, -0.9], [-0.8, 1.1, 0.5], [0.25, -0.35, 0.45]]
USER_SCALE, ITEM_SCALE = [1.5, 2.0], [0.5, 1.25, 1.0]

pytestmark = pytest.mark.usefixtures("double")


def fill(mlp: nn.Module, values: dict[str, tuple[list[list[float]], list[float]]]) -> None:
    with torch.no_grad():
        for name, (weight, bias) in values.items():
            mlp.get_parameter(f"{name}.weight").copy_(torch.tensor(weight))
            mlp.get_parameter(f"{name}.bias").copy_(torch.tensor(bias))


@pytest.fixture
def residual() -> Model:
    """The model as it starts at the filter: a base path beside both MLPs."""
    spectrum = low_spectrum(GRAPH, 3)
    model = lgcn.build(ModelInputs(spectrum, GRAPH, build_start(Filter(3, 0.0, 0.5), spectrum, GRAPH), None, METHOD))
    fill(model.head.pooling, POOLING)
    fill(model.head.predictive, PREDICTIVE)
    return model


@pytest.fixture
def bare() -> Model:
    """The paper's model: the MLPs alone."""
    model = lgcn.build(ModelInputs(low_spectrum(GRAPH, 3), GRAPH, None, None, METHOD))
    fill(model.head.pooling, POOLING)
    fill(model.head.predictive, PREDICTIVE)
    return model


def mlp(values: dict[str, tuple[list[list[float]], list[float]]], x: Sequence[float]) -> list[float]:
    """output(tanh(hidden(x))) of one row, as sums."""
    (w, b), (w2, b2) = values["hidden"], values["output"]
    hidden = [math.tanh(sum(a * c for a, c in zip(row, x, strict=True)) + d) for row, d in zip(w, b, strict=True)]
    return [sum(a * c for a, c in zip(row, hidden, strict=True)) + d for row, d in zip(w2, b2, strict=True)]


def predicted(u: Sequence[float], v: Sequence[float]) -> float:
    """Eq. 5 on the two lowest frequencies of one user and one item."""
    (u1, u2), (v1, v2) = u[:2], v[:2]
    return mlp(PREDICTIVE, [u1, u2, v1, v2, u1 * v1, u2 * v2])[0]


def pooled(rows: list[list[float]], scale: list[float], width: int) -> Pooled:
    return Pooled(torch.tensor(rows)[:, :width], torch.tensor(scale))


def test_pooling_is_the_mlp_of_the_concatenated_layers(bare: Model) -> None:
    layers = [torch.tensor([[0.3, -0.5]]), torch.tensor([[0.6, 0.2]])]
    assert bare.head.pool(layers)[0].tolist() == pytest.approx(mlp(POOLING, [0.3, -0.5, 0.6, 0.2]), abs=1e-14)


def test_with_a_base_path_pooling_adds_the_mlp_to_the_layers_mean(residual: Model) -> None:
    layers = [torch.tensor([[0.3, -0.5, 0.7]]), torch.tensor([[0.6, 0.2, -0.9]])]
    # The MLP sees the two lowest frequencies of each layer and is added to the same two; the third has the mean alone.
    first, second = mlp(POOLING, [0.3, -0.5, 0.6, 0.2])
    expected = [(0.3 + 0.6) / 2 + first, (-0.5 + 0.2) / 2 + second, (0.7 - 0.9) / 2]
    assert residual.head.pool(layers)[0].tolist() == pytest.approx(expected, abs=1e-14)


def test_a_score_is_the_predictive_mlp_of_user_item_and_their_product(bare: Model) -> None:
    found = bare.head.score(pooled(USERS, USER_SCALE, 2), pooled(ITEMS[:2], ITEM_SCALE[:2], 2))
    expected = [predicted(u, v) for u, v in zip(USERS, ITEMS, strict=False)]
    assert found.tolist() == pytest.approx(expected, abs=1e-14)


def test_with_a_base_path_a_score_adds_the_scaled_product(residual: Model) -> None:
    with torch.no_grad():
        residual.head.log_alpha.fill_(0.5)
    alpha = float(residual.head.alpha_start) * math.exp(0.5)
    found = residual.head.score(pooled(USERS, USER_SCALE, 3), pooled(ITEMS[:2], ITEM_SCALE[:2], 3))
    expected = [
        predicted(USERS[r], ITEMS[r])
        + alpha * USER_SCALE[r] * ITEM_SCALE[r] * sum(a * b for a, b in zip(USERS[r], ITEMS[r], strict=True))
        for r in range(2)
    ]
    assert found.tolist() == pytest.approx(expected, abs=1e-13)


@pytest.mark.parametrize("kind", ["bare", "residual"])
def test_scoring_all_pairs_at_once_gives_the_same_as_pair_by_pair(kind: str, request: pytest.FixtureRequest) -> None:
    model: Model = request.getfixturevalue(kind)
    width = 3 if model.head.residual else 2
    users, items = pooled(USERS, USER_SCALE, width), pooled(ITEMS, ITEM_SCALE, width)
    table = model.head.score_all(users, items)
    assert table.shape == (2, 3)
    for u in range(2):
        for i in range(3):
            pair = Pooled(users.embedding[[u]], users.scale[[u]]), Pooled(items.embedding[[i]], items.scale[[i]])
            assert table[u, i].item() == pytest.approx(model.head.score(*pair).item(), abs=1e-13)


def test_the_cosine_of_the_angle_is_the_tanh_of_the_score() -> None:
    scores: Tensor = torch.tensor([-3.0, -0.5, 0.0, 0.25, 4.0])
    assert torch.cos(angle(scores)).tolist() == pytest.approx([math.tanh(f) for f in scores.tolist()], abs=1e-12)
    assert float(angle(torch.zeros(1))) == pytest.approx(math.pi / 2)


def test_a_larger_score_is_a_smaller_angle_so_ranking_by_score_is_ranking_by_cosine() -> None:
    angles = angle(torch.linspace(-3, 3, 13))
    assert (angles.diff() < 0).all()
