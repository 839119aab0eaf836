"""What every equation's test stands on: arithmetic in float64, and small graphs written out or drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices

Graph = sparse.csr_array


@pytest.fixture
def double() -> Iterator[None]:
    """Models are built and run in float64, so that an identity can be held to 1e-10."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def drawn() -> Callable[..., Graph]:
    """A random graph (users, items, density, seed); every user and every item has an edge."""

    def graph(users: int, items: int, density: float = 0.3, seed: int = 0) -> Graph:
        dense = np.random.default_rng(seed).random((users, items)) < density
        dense[np.arange(users), np.arange(users) % items] = True
        dense[np.arange(items) % users, np.arange(items)] = True
        return sparse.csr_array(dense.astype(np.float64))

    return graph


@pytest.fixture
def shard_of() -> Callable[[Graph], Shard]:
    """A shard that holds a graph as its training edges, and nothing else."""

    def shard(train: Graph) -> Shard:
        users, items = (tuple(f"{kind}{row}" for row in range(n)) for kind, n in zip("ui", train.shape, strict=True))
        empty = sparse.csr_array(train.shape, dtype=np.float64)
        return build_shard_from_matrices("shop", users, items, (train, empty, empty))

    return shard
