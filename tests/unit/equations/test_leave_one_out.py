"""Step 4 and fold-in: a user's layers without one edge, and those of a basket that is not in the graph."""

from __future__ import annotations

import pytest
import torch
from scipy import sparse

from client_service.models.initial_filter import Filter, build_start
from client_service.models.low_pass import FreeKernels, LowPass
from client_service.models.model import ModelInputs
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum

METHOD = MethodSettings(width=3, layers=2, cutoff=4)
GRAPH = sparse.csr_array(
    [[1.0, 1, 0, 0, 1, 0], [1, 0, 1, 0, 0, 0], [0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 0, 1], [0, 0, 0, 1, 0, 0]]
)

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def model() -> LowPass:
    """5 users, 6 items, Phi 4. Z(0) is the start's; the kernels are as if trained."""
    spectrum = low_spectrum(GRAPH, 4)
    start = build_start(Filter(4, 0.4, 0.3), spectrum, GRAPH)
    found = LowPass(ModelInputs(spectrum, GRAPH, start, None, METHOD), FreeKernels(METHOD.layers, 4))
    with torch.no_grad():
        found.response.kernels.copy_(torch.tensor([[1.2, 0.9, 0.4, 1.1], [0.8, 1.3, 0.7, 0.2]]))
    return found


def basket(*items: int) -> torch.Tensor:
    return torch.tensor(items, dtype=torch.int64)


def node(item: int) -> torch.Tensor:
    """Items follow the 5 users in the numbering."""
    return torch.tensor([item + 5])


def assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(found) == len(expected) == 3
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)


def test_the_fold_in_row_is_the_nystroem_row_written_out(model: LowPass) -> None:
    # p = d^-1/2 r D_i^-1/2 V S^-1 / sqrt(2) for the basket {0, 2} of a stranger; item degrees are 2 and 3.
    spectrum = low_spectrum(GRAPH, 4)
    row = [
        (spectrum.items[0, k] / 2**0.5 + spectrum.items[2, k] / 3**0.5) / 2**0.5 / spectrum.singular[k] / 2**0.5
        for k in range(4)
    ]
    coefficients = model.coefficients()
    expected = [torch.tensor(row)[None] @ c for c in coefficients]
    assert_same(model.fold_in(basket(0, 2), coefficients), expected)


@pytest.mark.parametrize("user", range(5))
def test_the_whole_basket_of_a_known_user_reproduces_that_users_layers(model: LowPass, user: int) -> None:
    coefficients, items = model.coefficients(), GRAPH[[user]].indices
    assert_same(model.fold_in(basket(*items), coefficients), model.layers(torch.tensor([user]), coefficients))


@pytest.mark.parametrize("user", range(4))
def test_layers_without_an_edge_are_those_of_the_basket_without_the_item(model: LowPass, user: int) -> None:
    coefficients, items = model.coefficients(), GRAPH[[user]].indices.tolist()
    for left_out in items:
        rest = [item for item in items if item != left_out]
        found = model.layers_without_edge(torch.tensor([user]), node(left_out), coefficients)
        assert_same(found, model.fold_in(basket(*rest), coefficients))


def test_items_lose_the_edge_as_users_do(model: LowPass) -> None:
    # Seen from the other side: in the transposed graph the item is a user, and its users are its basket.
    coefficients = model.coefficients()
    for item in range(6):
        users = GRAPH[:, [item]].nonzero()[0].tolist()
        for left_out in users if len(users) > 1 else ():
            rest = [user for user in users if user != left_out]
            degree = torch.tensor(float(len(rest)))
            steps = torch.stack([model.edge_step[user] for user in rest]).sum(0) / degree.sqrt()
            found = model.layers_without_edge(node(item), torch.tensor([left_out]), coefficients)
            assert_same(found, [(steps @ c)[None] for c in coefficients])


def test_both_ends_of_a_pair_lose_it_with_their_degree(model: LowPass) -> None:
    users, items = model.nodes_without_edge(torch.tensor([0]), torch.tensor([0]), model.coefficients())
    by_user, by_item = GRAPH[[0]].sum(), GRAPH[:, [0]].sum()
    assert users.scale.item() == pytest.approx((by_user - 1) ** 0.3)
    assert items.scale.item() == pytest.approx((by_item - 1) ** 0.3)


def test_leaving_an_edge_out_changes_the_user(model: LowPass) -> None:
    coefficients, user = model.coefficients(), torch.tensor([0])
    with_edge, without = model.layers(user, coefficients), model.layers_without_edge(user, node(4), coefficients)
    assert all((a - b).abs().max().item() > 0.01 for a, b in zip(with_edge, without, strict=True))


def test_several_pairs_at_once_give_what_each_gives_alone(model: LowPass) -> None:
    coefficients, pairs = model.coefficients(), [(0, 1), (3, 5), (2, 2)]
    users, items = (torch.tensor(side) for side in zip(*pairs, strict=True))
    singles = [model.layers_without_edge(torch.tensor([u]), node(i), coefficients) for u, i in pairs]
    stacked = [torch.cat(rows) for rows in zip(*singles, strict=True)]
    assert_same(model.layers_without_edge(users, items + 5, coefficients), stacked)


def test_a_user_with_one_edge_is_nothing_without_it(model: LowPass) -> None:
    layers = model.layers_without_edge(torch.tensor([4]), node(3), model.coefficients())
    assert_same(layers, [torch.zeros(1, 4)] * 3)


def test_directions_that_carry_no_edge_are_left_out() -> None:
    # Users 0 and 1 are twins, and so are 2 and 3: R_hat has rank 2. Further vectors would tell twins apart by nothing
    # that is in the graph.
    graph = sparse.csr_array([[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]])
    spectrum = low_spectrum(graph, 4)
    assert spectrum.singular.tolist() == pytest.approx([1.0, 1.0])
    start = build_start(Filter(2, 0.4, 0.3), spectrum, graph)
    found = LowPass(ModelInputs(spectrum, graph, start, None, METHOD), FreeKernels(METHOD.layers, 2))
    with torch.no_grad():
        found.embedding.copy_(torch.linspace(-1.0, 2.0, found.embedding.numel()).view(found.embedding.shape))
    layers = found.layers_without_edge(torch.tensor([0]), torch.tensor([4]), found.coefficients())
    assert_same([layers[1], *layers[1:]], [torch.zeros(1, found.embedding.shape[1])] * 3)


def test_what_training_added_to_a_user_stays_when_an_edge_is_left_out(model: LowPass) -> None:
    # A move of the user's own embedding that P cannot see: it belongs to the user, not to the edge.
    outside = torch.linspace(-1, 1, 11)[:, None] * torch.ones(11, 4)
    outside = outside - model.basis @ (model.basis.T @ outside)
    before = model.layers_without_edge(torch.tensor([0]), node(1), model.coefficients())
    with torch.no_grad():
        model.embedding.add_(outside)
    after = model.layers_without_edge(torch.tensor([0]), node(1), model.coefficients())
    assert outside[0].abs().max().item() > 0.01
    torch.testing.assert_close(after[0] - before[0], outside[[0]], atol=1e-12, rtol=0)
    assert_same([before[0], *after[1:]], before)


def test_an_empty_basket_folds_in_as_zero(model: LowPass) -> None:
    assert_same(model.fold_in(basket(), model.coefficients()), [torch.zeros(1, 4)] * 3)
