"""A declaration -> the tensors and scalars of a body, as they are declared or as they are masked."""

from __future__ import annotations

import math
from typing import NamedTuple

from shared.method.declaration import Declaration
from shared.protocol.secure.messages import VISIBLE
from shared.protocol.secure.vector import layout


def answered(declaration: Declaration) -> Declaration:
    """What a client may get back: the mean of all that was summed, and its own rhobar."""
    scalars = (*(name for name in declaration.scalars if name not in VISIBLE), "rhobar")
    return declaration.model_copy(update={"scalars": scalars})


class Form(NamedTuple):
    """One tensor of an update's body: its type there, its shape, its bytes."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int


def forms(declaration: Declaration) -> dict[str, Form]:
    """The tensors of an update's body by name: as they are declared, or as they are masked."""
    if not declaration.secure:
        return {spec.name: Form("F32", spec.shape, 4 * math.prod(spec.shape)) for spec in declaration.tensors}
    return {name: Form("U64", shape, 8 * math.prod(shape)) for name, shape in layout(declaration).items()}


def beside(declaration: Declaration) -> tuple[str, ...]:
    """The scalars that anybody can read who has an update's body."""
    return tuple(name for name in declaration.scalars if not declaration.secure or name in VISIBLE)
