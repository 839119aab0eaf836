"""Step 2 (Eq. 3): Z(l) = P diag(k(l)) P^T Z(l-1), which the model computes without ever forming it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.models.low_pass import FreeKernels, LowPass, _RowsAndProjection
from client_service.models.model import ModelInputs
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum

Graph = sparse.csr_array
METHOD = MethodSettings(width=5, layers=3, cutoff=6)


pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def model(drawn: Callable[..., Graph]) -> LowPass:
    """9 users, 11 items, Phi 6, L 3; random kernels and an embedding that lies nowhere in particular."""
    graph, generator = drawn(9, 11, seed=1), torch.Generator().manual_seed(1)
    given = ModelInputs(low_spectrum(graph, METHOD.cutoff), graph, None, None, METHOD)
    found = LowPass(given, FreeKernels(METHOD.layers, METHOD.cutoff))
    with torch.no_grad():
        found.response.kernels.copy_(torch.rand(found.response.kernels.shape, generator=generator) * 2 - 0.5)
        found.embedding.copy_(torch.randn(found.embedding.shape, generator=generator))
    return found


def literal_layers(model: LowPass) -> list[np.ndarray]:
    """Eq. 3 as it stands in the paper, with the diagonal matrix written out."""
    basis, layer = model.basis.numpy(), model.embedding.detach().numpy()
    found = [layer]
    for kernel in model.response.kernels.detach().numpy():
        layer = basis @ np.diag(kernel) @ basis.T @ layer
        found.append(layer)
    return found


def test_the_basis_is_orthonormal(model: LowPass) -> None:
    torch.testing.assert_close(model.basis.T @ model.basis, torch.eye(6), atol=1e-12, rtol=0)


def test_every_layer_is_the_literal_convolution_of_the_one_before(model: LowPass) -> None:
    layers = model.layers(torch.arange(20), model.coefficients())
    assert len(layers) == 4
    for found, expected in zip(layers, literal_layers(model), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-12)


def test_rows_of_layers_are_those_asked_for(model: LowPass) -> None:
    rows = torch.tensor([13, 2, 2])
    for found, expected in zip(model.layers(rows, model.coefficients()), literal_layers(model), strict=True):
        np.testing.assert_allclose(found.detach().numpy(), expected[[13, 2, 2]], atol=1e-12)


def test_item_nodes_are_the_rows_after_the_users(model: LowPass) -> None:
    coefficients = model.coefficients()
    items = model.item_nodes(torch.tensor([0, 10]), coefficients)
    for row, expected in zip(items.layers, model.layers(torch.tensor([9, 19]), coefficients), strict=True):
        torch.testing.assert_close(row, expected)


def test_kernels_of_one_leave_a_layer_in_the_range_of_the_basis_alone(model: LowPass) -> None:
    with torch.no_grad():
        model.response.kernels.fill_(1.0)
        model.embedding.copy_(model.basis @ torch.randn(6, 5, generator=torch.Generator().manual_seed(2)))
    for layer in model.layers(torch.arange(20), model.coefficients()):
        torch.testing.assert_close(layer, model.embedding, atol=1e-12, rtol=0)


def test_rows_and_projection_gathered_at_once_have_the_gradient_of_each_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    embedding = torch.randn(5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    basis = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    nodes = torch.tensor([4, 0, 4])  # a node twice: its gradients add up
    assert torch.autograd.gradcheck(lambda z: _RowsAndProjection.apply(z, basis, nodes), (embedding,))
    rows, projection = _RowsAndProjection.apply(embedding, basis, nodes)
    assert torch.equal(rows, embedding[nodes]) and torch.equal(projection, basis.T @ embedding)
