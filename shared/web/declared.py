"""A declaration -> the rows of a page that say what an update may hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shared.schemas import Declaration
from shared.web.pages import shape, size
from shared.words import counted

FLOAT_BYTES = 4


@dataclass(frozen=True)
class DeclaredField:
    name: str
    kind: str
    shape: str
    bytes: str


@dataclass(frozen=True)
class Declared:
    """Every field that an update may hold, and in words how much that is together."""

    caption: str
    sentence: str
    fields: tuple[DeclaredField, ...]


def declared(declaration: Declaration) -> Declared:
    """What may leave: tensors of 4-byte numbers, and scalars as decimal text in the body's header."""
    sizes = [FLOAT_BYTES * math.prod(spec.shape) for spec in declaration.tensors]
    tensors = [
        DeclaredField(spec.name, "float32 tensor", shape(spec.shape), f"{count:,}")
        for spec, count in zip(declaration.tensors, sizes, strict=True)
    ]
    scalars = [DeclaredField(name, "scalar", "one number", "in the header") for name in declaration.scalars]
    much = f"{counted(len(tensors), 'tensor')} of {size(sum(sizes))} and {counted(len(scalars), 'scalar')}"
    none = "Nothing: this strategy exchanges no parameters."
    return Declared(
        caption=f"All that an update may hold under strategy {declaration.strategy}",
        sentence=f"{much}, and nothing else." if tensors or scalars else none,
        fields=(*tensors, *scalars),
    )
