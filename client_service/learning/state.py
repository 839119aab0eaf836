"""Local training between two rounds <-> named arrays: all of it that shard, settings and seed do not give again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shared.method.exchanged import Parameters, Scalars
from shared.method.parameters import Arrays, Float32

MODEL, TABLES, RECEIVED, OPTIMISER = "model/", "tables/", "received/", "optimiser/"


@dataclass(frozen=True)
class TrainingState:
    """What the rounds to come depend on.

    arrays: "model/<parameter>", "tables/<parameter>", "received/<parameter>", and what each optimiser remembers of a
    parameter as "optimiser/<only>/<parameter>/<what>"; `only` is what it trains, "" everything. scalars: those that
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

    def memories(self) -> dict[str, dict[str, Float32]]:
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
    remembered = [(only, key.rpartition("/")[0]) for only, memory in state.memories().items() for key in memory]
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
        held[places[id(own[name])]][what] = _laid_out(value, own[name])
    optimiser.load_state_dict({"state": dict(held), "param_groups": optimiser.state_dict()["param_groups"]})
    return optimiser


def _memory(optimiser: Optimizer, model: nn.Module) -> dict[str, Float32]:
    """Nothing of a parameter that the optimiser has not moved yet."""
    return {
        f"{name}/{what}": _to_array(value)
        for name, parameter in model.named_parameters()
        for what, value in optimiser.state.get(parameter, {}).items()
    }


def _laid_out(value: Float32, parameter: Tensor) -> Tensor:
    """A moment in its parameter's own memory order, as the optimiser would have made it; a step as it is."""
    tensor = torch.tensor(value)
    return torch.empty_like(parameter).copy_(tensor) if tensor.shape == parameter.shape else tensor


def _shapes(arrays: Arrays) -> dict[str, tuple[int, ...]]:
    return {name: value.shape for name, value in arrays.items()}


def _to_array(tensor: Tensor) -> Float32:
    found: Float32 = tensor.detach().cpu().numpy()
    return found
