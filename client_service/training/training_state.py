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
    """Values of the steps of an epoch, in one tensor.

    A tensor of its own for each step would lie in memory between the large ones of that step, whose memory could then
    not be reused: 4 MB a step were lost so, until the epoch's end.
    """

    def __init__(self, device: torch.device) -> None:
        self._values, self._count = torch.zeros(FIRST, device=device), 0

    def add(self, value: Tensor) -> None:
        """Stores one number without its graph; it stays on its device."""
        if self._count == len(self._values):
            self._values = torch.cat([self._values, torch.zeros_like(self._values)])
        self._values[self._count] = value.detach()
        self._count += 1

    def mean(self) -> float:
        """Computes the mean; nan before the first number."""
        return float(self._values[: self._count].mean())


@dataclass(frozen=True)
class RoundContext:
    """Round of a run: its number, the run's seed, and the anchor's kernel.

    round: 1 to rounds. draws: in a secure federation a secret that seeds the draws too; without it the run's seed alone
    does.
    """

    round: int
    rounds: int
    seed: int
    anchor: Float64 | None = None
    draws: bytes = field(default=b"", repr=False)


def load_named(model: nn.Module, received: Parameters) -> None:
    """Overwrites the named parameters.

    Raises ProtocolError for a name or shape that the model does not have.
    """
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in received.arrays.items():
            if name not in own or own[name].shape != value.shape:
                raise ProtocolError(f"expected a parameter of this model, got {name!r} of shape {list(value.shape)}")
            own[name].copy_(torch.from_numpy(np.array(value)))


def copy_named(model: nn.Module, names: Iterable[str]) -> dict[str, Float32]:
    """Copies these parameters as they are now, on the CPU."""
    own = dict(model.named_parameters())
    return {name: own[name].detach().cpu().numpy().copy() for name in names}


def to_tensors(received: Parameters, device: torch.device) -> dict[str, Tensor]:
    """Converts received parameters to tensors for a penalty."""
    return {name: torch.from_numpy(np.array(value)).to(device) for name, value in received.arrays.items()}


def seed_noise(shard: str, context: RoundContext, purpose: str, *, once_a_run: bool) -> np.random.Generator:
    """Builds the generator of noise on messages, seeded by the shard's content too.

    The aggregator knows the other inputs of the seed, and must not guess the noise.
    """
    number = 0 if once_a_run else context.round
    text = f"{shard}/{context.seed}/{number}/{purpose}"
    return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()))


def seed_draws(client: str, context: RoundContext, purpose: str) -> int:
    """Computes the seed of a run, client, round and purpose.

    A round that is run again draws the same.
    """
    text = f"{context.seed}/{client}/{context.round}/{purpose}".encode()
    if not context.draws:
        return zlib.crc32(text)
    return int.from_bytes(hmac.digest(context.draws, text, hashlib.sha256)[:8])


MODEL, TABLES, RECEIVED, OPTIMISER = "model/", "tables/", "received/", "optimiser/"
BROADCAST, MEMORY = "broadcast/", "memory/"


@dataclass
class StrategyTensors:
    """Tensors of a strategy outside the model: the server's broadcast, and the client's memory."""

    broadcast: Arrays = field(default_factory=dict)
    memory: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingState:
    """State on which the further rounds depend.

    arrays: "model/<parameter>", "tables/<parameter>", "received/<parameter>", and each optimiser's state of a parameter
    as "optimiser/<only>/<parameter>/<what>"; `only` is the prefix of the parameters that it trains, "" for all. Of the
    strategy's tensors "broadcast/<name>" and "memory/<name>", where it has some. scalars: those that were received
    last. fitted: have the popularity tables been fitted?
    """

    arrays: Arrays
    scalars: Scalars
    fitted: bool

    @property
    def received(self) -> Parameters:
        return Parameters(self.part(RECEIVED), self.scalars)

    def part(self, start: str) -> dict[str, Float32]:
        """Returns the arrays whose names start so, without that start."""
        return {name.removeprefix(start): value for name, value in self.arrays.items() if name.startswith(start)}

    def with_strategy(self, tensors: StrategyTensors) -> TrainingState:
        """Returns the state with these tensors of the strategy."""
        kept = {BROADCAST + name: value for name, value in tensors.broadcast.items()}
        kept |= {MEMORY + name: value for name, value in tensors.memory.items()}
        return replace(self, arrays={**self.arrays, **kept})

    def optimiser_states(self) -> dict[str, dict[str, Float32]]:
        """Lists steps and moments of each optimiser as "<parameter>/<what>"."""
        found: defaultdict[str, dict[str, Float32]] = defaultdict(dict)
        for key, value in self.part(OPTIMISER).items():
            only, _, rest = key.partition("/")
            found[only][rest] = value
        return dict(found)


def capture(
    model: nn.Module, tables: nn.Module, optimisers: Mapping[str, Optimizer], received: Parameters, fitted: bool
) -> TrainingState:
    """Captures the state as it is now.

    On a CPU its arrays are no copies: it must be stored before training continues.
    """
    arrays = {MODEL + name: _to_array(value) for name, value in model.named_parameters()}
    arrays |= {TABLES + name: _to_array(value) for name, value in tables.named_parameters()}
    arrays |= {RECEIVED + name: value for name, value in received.arrays.items()}
    for only, optimiser in optimisers.items():
        arrays |= {f"{OPTIMISER}{only}/{key}": value for key, value in _memory(optimiser, model).items()}
    return TrainingState(arrays, dict(received.scalars), fitted)


def fits(state: TrainingState, model: nn.Module, tables: nn.Module) -> bool:
    """Tells whether a state has the names and shapes of a model and its tables."""
    shapes = {name: tuple(value.shape) for name, value in model.named_parameters()}
    remembered = [(only, key.rpartition("/")[0]) for only, memory in state.optimiser_states().items() for key in memory]
    return (
        _shapes(state.part(MODEL)) == shapes
        and _shapes(state.part(TABLES)) == {name: tuple(value.shape) for name, value in tables.named_parameters()}
        and all(name in shapes and name.startswith(only) for only, name in remembered)
    )


def fill(module: nn.Module, arrays: Arrays) -> None:
    """Overwrites every parameter of a module."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.tensor(arrays[name]))


def restore_optimiser(optimiser: Optimizer, model: nn.Module, memory: Arrays) -> Optimizer:
    """Restores the steps and moments of an earlier optimiser."""
    own = dict(model.named_parameters())
    places = {id(p): i for i, p in enumerate(p for group in optimiser.param_groups for p in group["params"])}
    held: defaultdict[int, dict[str, Tensor]] = defaultdict(dict)
    for key, value in memory.items():
        name, _, what = key.rpartition("/")
        held[places[id(own[name])]][what] = _match_layout(value, own[name])
    optimiser.load_state_dict({"state": dict(held), "param_groups": optimiser.state_dict()["param_groups"]})
    return optimiser


def _memory(optimiser: Optimizer, model: nn.Module) -> dict[str, Float32]:
    """Returns the optimiser's state of each parameter, empty before its first step."""
    return {
        f"{name}/{what}": _to_array(value)
        for name, parameter in model.named_parameters()
        for what, value in optimiser.state.get(parameter, {}).items()
    }


def _match_layout(value: Float32, parameter: Tensor) -> Tensor:
    """Puts a moment into its parameter's memory layout; a step stays as it is."""
    tensor = torch.tensor(value)
    return torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in arrays.items()}


def _to_array(tensor: Tensor) -> Float32:
    found: Float32 = tensor.detach().cpu().numpy()
    return found
