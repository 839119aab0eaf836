"""Shops of 20 users and 40 items whose titles tell what users like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy import sparse

from client_service.data.interaction_files import save_shard
from client_service.data.interactions import build_shard_from_matrices

WORDS = ("space rocket", "river forest", "kitchen soup", "football goal", "castle ghost")


def write_described_shop(folder: Path, place: int, *, common: bool = False, text: bool = True) -> Path:
    """Writes the shard of one shop; `place` draws it and is in its ids.

    common: its items are those of all shops with common ones, or its own. text: its items have titles, or none.
    """
    generator = np.random.default_rng(place)
    kinds, drawn = np.arange(40) % 5, generator.random((3, 20, 40))
    train = drawn[0] < np.where(kinds == np.arange(20)[:, None] % 5, 0.7, 0.15)
    train[:, 0] = True
    valid = (drawn[1] < 0.2) & ~train
    test = (drawn[2] < 0.2) & ~train & ~valid
    users = [f"u{place}-{one:02}" for one in range(20)]
    items = [f"i{0 if common else place}-{one:02}" for one in range(40)]
    matrices = [sparse.csr_array(one.astype(float)) for one in (train, valid, test)]
    words = tuple(f"{WORDS[kind]} {place} {one}" for one, kind in enumerate(kinds)) if text else None
    save_shard(folder, replace(build_shard_from_matrices(folder.name, users, items, matrices), titles=words))
    return folder
