"""Step 5 (Eq. 7): log2 degree buckets, the angle xi between a user's and an item's embedding, and L_bias."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.models.popularity_angle import PopularityTables, log2_buckets
from client_service.training.margins import popularity_loss
from client_service.training.sampling import Batch

# Users have degrees 1 and 2, items 2 and 1: user buckets 1 and 2, item buckets 2 and 1.
GRAPH = sparse.csr_array([[1.0, 0.0], [1.0, 1.0]])
# cos xi of the four pairs, from the vectors below: user 0 with items 0, 1: 1, .6; user 1: 0, .8.
COSINES = [[1.0, 0.6], [0.0, 0.8]]

pytestmark = pytest.mark.usefixtures("double")


@pytest.fixture
def tables() -> PopularityTables:
    """Vectors of other lengths than 1: only their direction may count. Row 0, no edge at all, is used by nobody."""
    found = PopularityTables(GRAPH, width=2)
    with torch.no_grad():
        found.user_table.copy_(torch.tensor([[9.0, 9.0], [2.0, 0.0], [0.0, 0.5]]))
        found.item_table.copy_(torch.tensor([[9.0, 9.0], [6.0, 8.0], [3.0, 0.0]]))
    return found


def test_a_bucket_holds_degrees_from_one_power_of_two_to_the_next() -> None:
    degree = np.array([0, 1, 2, 3, 4, 7, 8, 1023, 1024], dtype=np.float64)
    # floor(log2 d) + 1, and 0 for no edge.
    expected = [0] + [math.floor(math.log2(d)) + 1 for d in degree[1:]]
    assert log2_buckets(degree).tolist() == expected == [0, 1, 2, 2, 3, 3, 4, 10, 11]


def test_tables_have_a_row_for_every_bucket_up_to_the_largest(tables: PopularityTables) -> None:
    assert tables.user_bucket.tolist() == [1, 2] and tables.item_bucket.tolist() == [2, 1]
    assert tables.user_table.shape == tables.item_table.shape == (3, 2)


def test_xi_is_the_angle_between_the_two_vectors(tables: PopularityTables) -> None:
    users, items = torch.arange(2), torch.arange(2)
    xi = tables.at(tables.angles(), users[:, None], items[None, :])
    expected = [[math.acos(cosine) for cosine in row] for row in COSINES]
    # Equal directions: arccos is cut off at 1 - 1e-6, an angle of sqrt(2e-6) = 1.4e-3.
    np.testing.assert_allclose(xi.numpy(), expected, atol=1.5e-3)
    np.testing.assert_allclose(xi.numpy()[1], expected[1], atol=1e-12)
    assert not tables.angles().requires_grad


def test_opposite_vectors_are_pi_apart(tables: PopularityTables) -> None:
    with torch.no_grad():
        tables.item_table.neg_()
    assert float(tables.angles()[1, 2]) == pytest.approx(math.pi, abs=1.5e-3)


def test_the_popularity_loss_is_a_softmax_of_cosines_over_the_negatives_that_count(tables: PopularityTables) -> None:
    # Pairs (0, 0) and (1, 1); drawn items 1 and 0. User 0 knows item 0, so only item 1 stands against it; against
    # (1, 1) only item 0 does. With tau = .5:
    #   (0, 0): -log(e^(1/.5) / (e^(1/.5) + e^(.6/.5))) = log(1 + e^-.8)
    #   (1, 1): -log(e^(.8/.5) / (e^(.8/.5) + e^0))     = log(1 + e^-1.6)
    excluded = torch.tensor([[False, True], [True, False]])
    batch = Batch(torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([1, 0]), excluded)
    expected = (math.log(1 + math.exp(-0.8)) + math.log(1 + math.exp(-1.6))) / 2
    assert popularity_loss(tables, batch, 0.5).item() == pytest.approx(expected, abs=1e-12)


def test_the_popularity_loss_moves_both_tables_and_no_unused_row(tables: PopularityTables) -> None:
    batch = Batch(torch.tensor([1]), torch.tensor([1]), torch.tensor([0]), torch.tensor([[False]]))
    popularity_loss(tables, batch, 0.5).backward()
    moved_users, moved_items = (table.grad.abs().sum(1) > 0 for table in (tables.user_table, tables.item_table))
    assert moved_users.tolist() == [False, False, True] and moved_items.tolist() == [False, True, True]
