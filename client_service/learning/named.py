"""The named tensors of a model <-> named arrays, and the seeds of what a client draws: of every kind of training."""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from shared.errors import ProtocolError
from shared.method.exchanged import Parameters
from shared.method.graph import Float64
from shared.method.parameters import Float32


@dataclass(frozen=True)
class Moment:
    """Where in a run a client trains: round 1..rounds, the run's seed, the anchor's kernel if there is one.

    draws: a secret from which the draws follow too, in a secure federation; without it they follow from the seed alone.
    """

    round: int
    rounds: int
    seed: int
    anchor: Float64 | None = None
    draws: bytes = field(default=b"", repr=False)


def load_named(model: nn.Module, received: Parameters) -> None:
    """Overwrite the named parameters. ProtocolError for one that the model has not, or has in another shape."""
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in received.arrays.items():
            if name not in own or own[name].shape != value.shape:
                raise ProtocolError(f"expected a parameter of this model, got {name!r} of shape {list(value.shape)}")
            own[name].copy_(torch.from_numpy(np.array(value)))


def copy_named(model: nn.Module, names: Iterable[str]) -> dict[str, Float32]:
    """These parameters as they are now, on the CPU."""
    own = dict(model.named_parameters())
    return {name: own[name].detach().cpu().numpy().copy() for name in names}


def tensors_of(received: Parameters, device: torch.device) -> dict[str, Tensor]:
    """What was received, as a penalty reads it."""
    return {name: torch.from_numpy(np.array(value)).to(device) for name, value in received.arrays.items()}


def seed_noise(shard: str, moment: Moment, purpose: str, *, once_a_run: bool) -> np.random.Generator:
    """Noise on what leaves must not be guessed: beside what the aggregator knows, the shard's content seeds it."""
    number = 0 if once_a_run else moment.round
    text = f"{shard}/{moment.seed}/{number}/{purpose}"
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()))


def seed_draws(client: str, moment: Moment, purpose: str) -> int:
    """The seed of one stream a run, client, round and purpose: a round that is run again draws the same."""
    text = f"{moment.seed}/{client}/{moment.round}/{purpose}".encode()
    if not moment.draws:
        return zlib.crc32(text)
    return int.from_bytes(hmac.digest(moment.draws, text, hashlib.sha256)[:8])
