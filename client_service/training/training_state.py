"""Local training between rounds as named arrays: tensors, seeds, optimiser state, step values."""

from __future__ import annotations

import hashlib
import hmac
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shared.errors import ProtocolError
from shared.method.graph import Float64
from shared.method.parameters import Arrays, Float32, Parameters, Scalars

FIRST = 1024  # numbers that there is room for at first


class StepValues:
    """Kept in one tensor. A tensor of its own for each step would lie in memory between the large ones of that step,
    whose place could then not be used again: 4 MB a step were lost so, until the epoch's end."""

    def __init__(self, device: torch.device) -> None:
        self._values, self._count = torch.zeros(FIRST, device=device), 0

    def add(self, value: Tensor) -> None:
        """One number, without what it was computed from. It stays on its device."""
        if self._count == len(self._values):
            self._values = torch.cat([self._values, torch.zeros_like(self._values)])
        self._values[self._count] = value.detach()
        self._count += 1

    def mean(self) -> float:
        """nan before the first number."""
        return float(self._values[: self._count].mean())


@dataclass(frozen=True)
class RoundContext:
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


def to_tensors(received: Parameters, device: torch.device) -> dict[str, Tensor]:
    """What was received, as a penalty reads it."""
    return {name: torch.from_numpy(np.array(value)).to(device) for name, value in received.arrays.items()}


def seed_noise(shard: str, moment: RoundContext, purpose: str, *, once_a_run: bool) -> np.random.Generator:
    """Noise on what leaves must not be guessed: beside what the aggregator knows, the shard's content seeds it."""
    number = 0 if once_a_run else moment.round
    text = f"{shard}/{moment.seed}/{number}/{purpose}"
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()))


def seed_draws(client: str, moment: RoundContext, purpose: str) -> int:
    """The seed of one stream a run, client, round and purpose: a round that is run again draws the same."""
    text = f"{moment.seed}/{client}/{moment.round}/{purpose}".encode()
    if not moment.draws:
        return zlib.crc32(text)
    return int.from_bytes(hmac.digest(moment.draws, text, hashlib.sha256)[:8])


MODEL, TABLES, RECEIVED, OPTIMISER = "model/", "tables/", "received/", "optimiser/"
BROADCAST, MEMORY = "broadcast/", "memory/"


@dataclass
class StrategyTensors:
    """Tensors of a run's strategy that no model holds: broadcast by the server, and this client's memory."""

    broadcast: Arrays = field(default_factory=dict)
    memory: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingState:
    """What the rounds to come depend on.

    arrays: "model/<parameter>", "tables/<parameter>", "received/<parameter>", and what each optimiser remembers of a
    parameter as "optimiser/<only>/<parameter>/<what>"; `only` is what it trains, "" everything. Of the strategy's
    tensors "broadcast/<name>" and "memory/<name>", where it has some. scalars: those that
    were received last. fitted: have the popularity tables been fitted?
    """

    arrays: Arrays
    scalars: Scalars
    fitted: bool

    @property
    def received(self) -> Parameters:
        return Parameters(self.part(RECEIVED), self.scalars)

    def part(self, start: str) -> dict[str, Float32]:
        """The arrays whose names start so, without that start."""
        return {name.removeprefix(start): value for name, value in self.arrays.items() if name.startswith(start)}

    def with_strategy(self, tensors: StrategyTensors) -> TrainingState:
        """The same with these tensors of the strategy."""
        kept = {BROADCAST + name: value for name, value in tensors.broadcast.items()}
        kept |= {MEMORY + name: value for name, value in tensors.memory.items()}
        return replace(self, arrays={**self.arrays, **kept})

    def optimiser_states(self) -> dict[str, dict[str, Float32]]:
        """Steps and moments of each optimiser as "<parameter>/<what>", by what it trains."""
        found: defaultdict[str, dict[str, Float32]] = defaultdict(dict)
        for key, value in self.part(OPTIMISER).items():
            only, _, rest = key.partition("/")
            found[only][rest] = value
        return dict(found)


def capture(
    model: nn.Module, tables: nn.Module, optimisers: Mapping[str, Optimizer], received: Parameters, fitted: bool
) -> TrainingState:
    """The state as it is now. On a CPU its arrays are no copies: it must be kept before training goes on."""
    arrays = {MODEL + name: _to_array(value) for name, value in model.named_parameters()}
    arrays |= {TABLES + name: _to_array(value) for name, value in tables.named_parameters()}
    arrays |= {RECEIVED + name: value for name, value in received.arrays.items()}
    for only, optimiser in optimisers.items():
        arrays |= {f"{OPTIMISER}{only}/{key}": value for key, value in _memory(optimiser, model).items()}
    return TrainingState(arrays, dict(received.scalars), fitted)


def fits(state: TrainingState, model: nn.Module, tables: nn.Module) -> bool:
    """Is it a state of this model and these tables, to the name and the shape?"""
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    remembered = [(only, key.rpartition("/")[0]) for only, memory in state.optimiser_states().items() for key in memory]
    return (
        _shapes(state.part(MODEL)) == shapes
        and _shapes(state.part(TABLES)) == {name: tuple(value.shape) for name, value in tables.named_parameters()}
        and all(name in shapes and name.startswith(only) for only, name in remembered)
    )


def fill(module: nn.Module, arrays: Arrays) -> None:
    """Overwrite every parameter."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.tensor(arrays[name]))


def restore_optimiser(optimiser: Optimizer, model: nn.Module, memory: Arrays) -> Optimizer:
    """A new optimiser with the steps and moments that an earlier one had."""
    own = dict(model.named_parameters())
    places = {id(p): i for i, p in enumerate(p for group in optimiser.param_groups for p in group["params"])}
    held: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
    for key, value in memory.items():
        name, _, what = key.rpartition("/")
        held[places[id(own[name])]][what] = _match_layout(value, own[name])
    optimiser.load_state_dict({"state": dict(held), "param_groups": optimiser.state_dict()["param_groups"]})
    return optimiser


def _memory(optimiser: Optimizer, model: nn.Module) -> dict[str, Float32]:
    """Nothing of a parameter that the optimiser has not moved yet."""
    return {
        f"{name}/{what}": _to_array(value)
        for name, parameter in model.named_parameters()
        for what, value in optimiser.state.get(parameter, {}).items()
    }


def _match_layout(value: Float32, parameter: Tensor) -> Tensor:
    """A moment in its parameter's own memory order, as the optimiser would have made it; a step as it is."""
    tensor = torch.tensor(value)
    return torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in arrays.items()}


def _to_array(tensor: Tensor) -> Float32:
    found: Float32 = tensor.detach().cpu().numpy()
    return found
