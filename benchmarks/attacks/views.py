"""Views of each attacker on the transcripts of shadow runs, as features.

Shapes: S shadows, R rounds, P shared parameters, K replays, C clients of a federation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.attacks.attack import Blocks
from benchmarks.attacks.silo import SCALARS
from shared.method.declaration import TensorSpec
from shared.method.graph import Float64
from shared.method.parameters import Float32
from shared.method.tensors import ITEM_TABLE
from shared.strategies.lpsfed import similarities

MARGIN, RHO = (SCALARS.index(name) for name in ("margin", "rho"))
Parts = Sequence[slice]


@dataclass(frozen=True, eq=False)
class Transcripts:
    """Many runs of the attacked client, with the other clients of each.

    received and sent (S, R, P), scalars (S, R, 2), others (S, 2).
    """

    received: Float32
    sent: Float32
    scalars: Float64
    others: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Replays:
    """Updates of other clients: sent (K, R, P), scalars (K, R, 2)."""

    sent: Float32
    scalars: Float64


View = Callable[[Transcripts, Replays, Parts], Blocks]


def tensor_slices(specification: Sequence[TensorSpec]) -> list[slice]:
    """Returns the slice of each tensor in a joined vector.

    For an item table, of each row.
    """
    sizes: list[int] = []
    for spec in specification:
        rows = spec.shape[0] if spec.name == ITEM_TABLE else 1
        sizes += [int(np.prod(spec.shape)) // rows] * rows
    ends = np.cumsum([0, *sizes])
    return [slice(int(first), int(last)) for first, last in pairwise(ends)]


def aggregator_view(seen: Transcripts, replays: Replays, parts: Parts) -> Blocks:
    """Returns the aggregator's view in the open mode: the client's update, M and rho.

    The others' updates add nothing about this client.
    """
    del replays
    moved = seen.sent.astype(np.float64) - seen.received
    return _feature_blocks(moved, seen.scalars, parts)


def scalars_view(seen: Transcripts, replays: Replays, parts: Parts) -> Blocks:
    """Returns only M and rho of each round."""
    del replays, parts
    return {"scalars": _flatten_rows(np.nan_to_num(seen.scalars))}


def tensors_view(seen: Transcripts, replays: Replays, parts: Parts) -> Blocks:
    """Returns the tensors of each round without M and rho."""
    return {name: block for name, block in aggregator_view(seen, replays, parts).items() if name != "scalars"}


def secure_view(seen: Transcripts, replays: Replays, parts: Parts) -> Blocks:
    """Returns the view under secure aggregation: means of updates and M, every client's rho."""
    rho = np.stack([seen.scalars[..., RHO], *(replays.scalars[k][..., RHO] for k in seen.others.T)], axis=-1)
    scalars = np.concatenate([_mean_margin(seen, replays)[..., None], rho], axis=-1)
    return _feature_blocks(_mean_moved(seen, replays), scalars, parts)


def neighbour_view(seen: Transcripts, replays: Replays, parts: Parts) -> Blocks:
    """Returns the view of another client, which knows the mean and its own rhobar.

    It subtracts its own update from the mean. In the open mode it gets a mixture of the two, so this is the most that
    it can learn.
    """
    own = seen.others[:, 0]
    clients = len(seen.others.T) + 1
    sums = _mean_moved(seen, replays) * clients - replays.sent[own]
    margins = _mean_margin(seen, replays) * clients - replays.scalars[own][..., MARGIN]
    return _feature_blocks(sums, np.stack([margins, _neighbour_rhobars(seen, replays)], axis=-1), parts)


def change_norms(seen: Transcripts, parts: Parts) -> Float64:
    """Computes the norm of each part's change in the first round, (S, parts).

    For an item table, of each row. No shadow is needed to see which rows stayed as they were.
    """
    moved = seen.sent[:, 0].astype(np.float64) - seen.received[:, 0]
    return np.stack([np.linalg.norm(moved[:, part], axis=-1) for part in parts], axis=-1)


def _mean_moved(seen: Transcripts, replays: Replays) -> Float64:
    """Computes the mean of all updates less the previous mean, (S, R, P).

    Each client has received a value between its own last update and the last mean; only the client knows it all.
    """
    sums = seen.sent.astype(np.float64)
    for others in seen.others.T:
        sums = sums + replays.sent[others]
    mean = sums / (len(seen.others.T) + 1)
    before = np.concatenate([seen.received[:, :1].astype(np.float64), mean[:, :-1]], axis=1)
    moved: Float64 = mean - before
    return moved


def _mean_margin(seen: Transcripts, replays: Replays) -> Float64:
    """Computes the mean M of all clients, (S, R)."""
    margins = [seen.scalars[..., MARGIN], *(replays.scalars[k][..., MARGIN] for k in seen.others.T)]
    mean: Float64 = np.mean(margins, axis=0)
    return mean


def _neighbour_rhobars(seen: Transcripts, replays: Replays) -> Float64:
    """Computes the rhobar that the other client receives (Eq. 12), (S, R)."""
    rho = np.stack([seen.scalars[..., RHO], *(replays.scalars[k][..., RHO] for k in seen.others.T)], axis=-1)
    rhobars = np.array([_second_rhobar(row) for row in rho.reshape(-1, rho.shape[-1])])
    return rhobars.reshape(rho.shape[:-1])


def _second_rhobar(rho: Float64) -> float:
    """Computes rhobar of the second client from one round's rho (C,); NaN: none sent."""
    latest = {str(client): {} if np.isnan(value) else {"rho": float(value)} for client, value in enumerate(rho)}
    return similarities(latest)["1"]


def _feature_blocks(moved: Float64, scalars: Float64, parts: Parts) -> Blocks:
    norms = np.stack([np.linalg.norm(moved[..., part], axis=-1) for part in parts], axis=-1)
    return {
        "tensors": _flatten_rows(moved),
        "norms": _flatten_rows(norms),
        "scalars": _flatten_rows(np.nan_to_num(scalars)),
    }


def _flatten_rows(values: Float64) -> Float64:
    return values.reshape(len(values), -1)
