"""Sampler of shuffled batches of training pairs with uniform negatives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Batch of training pairs with common negatives.

    users (B,), items (B,); negatives (n,); excluded (B, n) where a sampled item is one of the user's training items.
    The negatives that remain are uniform over the user's other items.
    """

    users: Tensor
    items: Tensor
    negatives: Tensor
    excluded: Tensor


class PairSampler:
    """Sampler of all training pairs once an epoch, in an order drawn from the generator.

    Drawing always happens on the CPU, so that a GPU sees the same batches.
    """

    def __init__(self, interactions: sparse.csr_array, *, batch_size: int, negatives: int, device: torch.device):
        pairs = interactions.tocoo()
        self._users = torch.from_numpy(pairs.row.astype(np.int64)).to(device)
        self._items = torch.from_numpy(pairs.col.astype(np.int64)).to(device)
        self._catalogue = interactions.shape[1]
        self._takers = sparse.csr_array(interactions.T.astype(bool))  # (N, M)
        self._batch_size, self._negatives, self._device = batch_size, negatives, device

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return -(-len(self._users) // self._batch_size)

    def epoch(self, generator: torch.Generator) -> Iterator[Batch]:
        order = torch.randperm(len(self._users), generator=generator).to(self._device)
        for first in range(0, len(order), self._batch_size):
            chosen = order[first : first + self._batch_size]
            drawn = torch.randint(self._catalogue, (self._negatives,), generator=generator)
            users = self._users[chosen]
            yield Batch(users, self._items[chosen], drawn.to(self._device), self._is_known(users, drawn))

    def _is_known(self, users: Tensor, drawn: Tensor) -> Tensor:
        """Marks the (user, drawn item) pairs that are training pairs, (B, n).

        It looks into the drawn items' own rows, (n, M), which costs a tenth of a search of all pairs for each.
        """
        takers = torch.from_numpy(self._takers[drawn.numpy()].toarray()).to(self._device)
        return takers.T[users]
