"""Popularity angle xi between a user and an item, from embeddings of log2 degree buckets."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from shared.method.graph import Float64, degrees

COSINE_LIMIT = 1.0 - 1e-6  # arccos has an infinite slope at 1; xi is only ever used without a gradient


class PopularityTables(nn.Module):
    """Popularity embeddings of users and items by degree bucket (Section 4.1).

    f_psi and f_phi for both sides. Private: they never leave the client. xi depends on the two buckets alone, so
    everything is computed on a (user buckets, item buckets) table, a few hundred numbers, however many users and items
    there are.
    """

    user_bucket: Tensor
    item_bucket: Tensor

    def __init__(self, interactions: sparse.csr_array, width: int) -> None:
        super().__init__()
        by_user, by_item = (log2_buckets(degree) for degree in degrees(interactions))
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("user_bucket", by_user)
        self.register_buffer("item_bucket", by_item)
        self.user_table = nn.Parameter(torch.randn(int(by_user.max()) + 1, width, generator=generator))
        self.item_table = nn.Parameter(torch.randn(int(by_item.max()) + 1, width, generator=generator))

    def cosines(self) -> Tensor:
        """Computes cos xi of every pair of buckets."""
        users, items = nn.functional.normalize(self.user_table), nn.functional.normalize(self.item_table)
        return users @ items.T

    def angles(self) -> Tensor:
        """Computes xi of every pair of buckets, in [0, pi], without gradient."""
        return torch.arccos(self.cosines().detach().clamp(-COSINE_LIMIT, COSINE_LIMIT))

    def products(self) -> Tensor:
        """Computes u . v of every pair of buckets, without gradient.

        It is scaled as if the vectors had begun at Xavier's normals.
        """
        # Release: tables that begin at Xavier's normals; here: their deviation is put on the products, because the
        # tables begin at unit normals, whose products of `width` terms leave a sigmoid no middle.
        sizes = (self.user_table.shape, self.item_table.shape)
        scale = math.prod(math.sqrt(2.0 / sum(size)) for size in sizes)
        return scale * (self.user_table @ self.item_table.T).detach()

    def at(self, table: Tensor, users: Tensor, items: Tensor) -> Tensor:
        """Looks up a bucket table for users and items, which are broadcast."""
        return table[self.user_bucket[users], self.item_bucket[items]]


def log2_buckets(degree: Float64) -> Tensor:
    """Computes the log2 bucket of each degree.

    0 for no edge, 1 for one, 2 for two or three, 3 for four to seven, and so on.
    """
    return torch.from_numpy(np.frexp(degree)[1].astype(np.int64))
