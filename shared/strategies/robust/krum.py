"""Krum: of all updates the one, or the mean of the few, whose nearest neighbours are nearest.

Blanchard, El Mhamdi, Guerraoui, Stainer: Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent.
NeurIPS 2017. Shapes: C updates of P numbers each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shared.errors import SettingsError
from shared.method.exchanged import State, Update
from shared.method.graph import Float64
from shared.strategies.mean import mean_of_updates
from shared.strategies.robust.stacks import pieces, stack_tensor


def krum(state: State, updates: Sequence[Update], *, tolerated: int, kept: int) -> State:
    """The mean of the `kept` updates with the least scores; `kept` = 1 is Krum, more is multi-Krum.

    SettingsError for fewer than 2 f + 3 updates, f = `tolerated`, or kept + f + 2. All clients' scalars are remembered.
    """
    if len(updates) < 2 * tolerated + 3 or kept > len(updates) - tolerated - 2:
        expected = f"{max(2 * tolerated + 3, kept + tolerated + 2)} updates or more"
        raise SettingsError(f"tolerated: expected {expected} to keep {kept} of, got {len(updates)}")
    ordered = sorted(updates, key=lambda update: update.client)
    found = scores(squared_distances(sorted(state.arrays), ordered), tolerated)
    chosen = [ordered[index] for index in np.argsort(found, kind="stable")[:kept]]
    latest = {update.client: dict(update.scalars) for update in ordered}
    return replace(mean_of_updates(state, chosen), latest={**state.latest, **latest})


def squared_distances(names: Sequence[str], updates: Sequence[Update]) -> Float64:
    """|x_i - x_j|^2 of every two updates, (C, C), over all tensors.

    As |x_i|^2 + |x_j|^2 - 2 x_i x_j, of what is left once the middle of all is taken away: so nothing that all have in
    common rounds off how they differ.
    """
    total = np.zeros((len(updates), len(updates)))
    for name in names:
        for piece in pieces(stack_tensor(name, updates)):
            centred = piece - np.median(piece, axis=0)
            total += centred @ centred.T
    lengths = np.diag(total)
    return np.maximum(lengths[:, None] + lengths - 2.0 * total, 0.0)


def scores(squares: Float64, tolerated: int) -> Float64:
    """Of each update the sum of its squared distances to its C - f - 2 nearest others, (C,)."""
    others = np.sort(squares + np.diag(np.full(len(squares), np.inf)), axis=1)
    nearest: Float64 = others[:, : len(squares) - tolerated - 2].sum(axis=1)
    return nearest
