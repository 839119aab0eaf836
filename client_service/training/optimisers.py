"""The optimisers of local training: torch's own, without the import of its compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.optim import SGD, Adam, Optimizer, RMSprop

# torch's decorators of these methods import torch._dynamo, its compiler, at the first call: a second of processor in
# each process that trains. Nothing here is compiled, so the undecorated methods are called; they compute the same.
COMPILER_FREE = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def _without_compiler(kind: type[Optimizer]) -> type[Optimizer]:
    methods = {name: getattr(Optimizer, name).__wrapped__ for name in COMPILER_FREE}
    step = torch.no_grad()(kind.step.__wrapped__)  # type: ignore[attr-defined]
    return type(kind.__name__, (kind,), {**methods, "step": step})


OPTIMISERS: Mapping[str, Callable[..., Optimizer]] = {
    "adam": _without_compiler(Adam),
    "sgd": _without_compiler(SGD),
    "rmsprop": _without_compiler(RMSprop),
}


def make_optimiser(kind: str, groups: Sequence[Mapping[str, Any]]) -> Optimizer:
    """Builds the optimiser that the setting `optimiser` names.

    groups: parameters with learning rates of their own.
    """
    members = [dict(group) for group in groups]
    return OPTIMISERS[kind](members, fused=True) if kind == "adam" else OPTIMISERS[kind](members)
