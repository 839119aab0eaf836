"""Step 4: the untrained model is the linear low-pass filter; the paper's random start is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.models.encoders import lgcn
from client_service.models.initial_filter import Filter, build_start
from client_service.models.model import Model, ModelInputs
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum, low_spectrum
from shared.method.tensors import initial_parameters, mlp_specification

Graph = sparse.csr_array
METHOD = MethodSettings(width=4, layers=2, cutoff=8)

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def graph(drawn: Callable[..., Graph]) -> Graph:
    return drawn(60, 80, 0.08, seed=3)


@pytest.fixture
def spectrum(graph: Graph) -> Spectrum:
    return low_spectrum(graph, METHOD.cutoff)


def untrained(graph: Graph, spectrum: Spectrum, chosen: Filter | None, *, exact: bool = True) -> Model:
    """A model with the initial MLPs that the aggregator hands out."""
    start = None if chosen is None else build_start(chosen, spectrum, graph)
    model = lgcn.build(ModelInputs(spectrum, graph, start, None, METHOD))
    initial = initial_parameters(mlp_specification(METHOD), 5, exact=exact)
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in initial.items():
            own[name].copy_(torch.from_numpy(value))
    return model


@torch.no_grad()
def all_scores(model: Model) -> np.ndarray:
    users, items = model.pooled()
    return model.head.score_all(users, items).numpy()


def assert_proportional(found: np.ndarray, expected: np.ndarray) -> None:
    """One positive constant carries one matrix into the other, to 1e-10 of the largest entry."""
    alpha = np.vdot(found, expected) / np.vdot(expected, expected)
    assert alpha > 0
    np.testing.assert_allclose(found, alpha * expected, atol=1e-10 * np.abs(found).max(), rtol=0)


def test_untrained_scores_are_the_ideal_low_pass_filter(graph: Graph, spectrum: Spectrum) -> None:
    model = untrained(graph, spectrum, Filter(cutoff=8, ridge=0.0, exponent=0.5))
    # r_u D_i^-1/2 V V^T D_i^1/2, with V from a dense decomposition of the normalised matrix.
    rows = graph.toarray()
    by_user, by_item = rows.sum(1), rows.sum(0)
    right = np.linalg.svd(rows / np.sqrt(by_user[:, None] * by_item))[2][:8].T
    assert_proportional(all_scores(model), (rows / np.sqrt(by_item)) @ right @ right.T * np.sqrt(by_item))


def test_untrained_scores_follow_the_ridge_response_and_the_exponent(graph: Graph, spectrum: Spectrum) -> None:
    model = untrained(graph, spectrum, Filter(cutoff=5, ridge=0.4, exponent=0.3))
    rows = graph.toarray()
    by_user, by_item = rows.sum(1), rows.sum(0)
    left, s, right = np.linalg.svd(rows / np.sqrt(by_user[:, None] * by_item))
    expected = np.zeros_like(rows)
    for k in range(5):  # s h = s^3 / (s^2 + ridge), nothing beyond the filter's own cut-off
        expected += s[k] ** 3 / (s[k] ** 2 + 0.4) * np.outer(left[:, k], right[k])
    assert_proportional(all_scores(model), expected * by_user[:, None] ** 0.3 * by_item**0.3)


def test_every_layer_of_the_untrained_model_is_its_embedding(graph: Graph, spectrum: Spectrum) -> None:
    model = untrained(graph, spectrum, Filter(8, 0.4, 0.3))
    layers = model.encoder.layers(torch.arange(140), model.encoder.coefficients())
    assert len(layers) == 3
    for layer in layers:
        torch.testing.assert_close(layer, model.encoder.embedding, atol=1e-12, rtol=0)


def test_one_pair_in_a_hundred_starts_beyond_the_saturation_of_tanh(graph: Graph, spectrum: Spectrum) -> None:
    # alpha is calibrated on 100,000 of the 4,800 pairs drawn with replacement: 1 % within 0.2 % (six deviations).
    f = np.abs(all_scores(untrained(graph, spectrum, Filter(8, 0.4, 0.3))))
    assert 0.008 < (f > 2.0).mean() < 0.012


def test_entries_of_the_start_are_of_order_one(graph: Graph, spectrum: Spectrum) -> None:
    # Columns of U and V have length 1, so that the mean square of sqrt((M + N) / 2) [U; V] diag(sqrt(s)) is
    # (M + N) / 2 * 2 sum(s) / ((M + N) Phi) = mean(s).
    origin = untrained(graph, spectrum, Filter(8, 0.0, 0.5)).encoder.origin
    mean_square = float((origin**2).mean())
    assert mean_square == pytest.approx(spectrum.singular.mean(), abs=1e-12)
    assert 0.1 < mean_square <= 1.0


def test_a_width_beyond_the_cutoff_is_filled_with_zeros(graph: Graph, spectrum: Spectrum) -> None:
    wide = MethodSettings(width=11, layers=2, cutoff=8)
    model = lgcn.build(ModelInputs(spectrum, graph, build_start(Filter(8, 0.0, 0.5), spectrum, graph), None, wide))
    assert model.encoder.embedding.shape == (140, 11)
    assert not model.encoder.origin[:, 8:].any() and model.encoder.origin[:, :8].any()


def test_an_item_and_a_user_without_an_edge_score_zero() -> None:
    graph = sparse.csr_array([[1.0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 1, 0], [0, 0, 0, 0]])
    spectrum = low_spectrum(graph, 2)
    scores = all_scores(untrained(graph, spectrum, Filter(2, 0.0, 0.5)))
    assert np.abs(scores[3]).max() < 1e-12 and np.abs(scores[:, 3]).max() < 1e-12
    assert (np.abs(scores[:3, :3]).max(1) > 1.0).all()


def test_random_output_layers_leave_the_filter(graph: Graph, spectrum: Spectrum) -> None:
    chosen = Filter(8, 0.0, 0.5)
    exact = all_scores(untrained(graph, spectrum, chosen))
    with pytest.raises(AssertionError):
        assert_proportional(all_scores(untrained(graph, spectrum, chosen, exact=False)), exact)


def test_the_papers_random_start_is_neither_the_filter_nor_left_alone_by_a_convolution(
    graph: Graph, spectrum: Spectrum
) -> None:
    filtered = all_scores(untrained(graph, spectrum, Filter(8, 0.0, 0.5)))
    model = untrained(graph, spectrum, None, exact=False)
    scores = all_scores(model)
    assert abs(np.corrcoef(scores.ravel(), filtered.ravel())[0, 1]) < 0.3
    first, second, third = model.encoder.layers(torch.arange(140), model.encoder.coefficients())
    assert (first - second).abs().max().item() > 0.1  # normal noise has components outside the low pass ...
    torch.testing.assert_close(second, third, atol=1e-12, rtol=0)  # ... and loses them at once
    assert model.encoder.embedding.std().item() == pytest.approx(0.1, rel=0.1)


def test_without_a_base_path_the_exact_parameters_would_score_everything_alike(
    graph: Graph, spectrum: Spectrum
) -> None:
    assert np.abs(all_scores(untrained(graph, spectrum, None, exact=True))).max() == 0.0
