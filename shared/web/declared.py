"""A declaration -> the rows of a page that say what an update may hold."""

from __future__ import annotations

from dataclasses import dataclass

from shared.method.declaration import Declaration
from shared.protocol.forms import beside, forms
from shared.web.pages import shape, size
from shared.words import count_noun


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


def declared_out(declaration: Declaration) -> Declared:
    """What may leave: tensors of 4-byte numbers, or masked in a secure federation, then float32 as 8-byte numbers with
    the hidden scalars among them; and scalars as decimal text in the body's header. With a common basis the sums too.
    """
    basis = None if declaration.basis is None else declared_out(declaration.basis)
    own = _declared_part(declaration)
    if basis is None:
        return own
    return Declared(
        own.caption, f"{own.sentence} In a basis run instead: {basis.sentence}", (*own.fields, *basis.fields)
    )


def _declared_part(declaration: Declaration) -> Declared:
    sizes = forms(declaration)
    kinds = {"U64": "masked tensor", "F32": "float32 tensor", "U32": "uint32 tensor"}
    if declaration.secure:
        kinds = dict.fromkeys(kinds, "masked tensor")
    tensors = [DeclaredField(name, kinds[one.dtype], shape(one.shape), f"{one.bytes:,}") for name, one in sizes.items()]
    scalars = [DeclaredField(name, "scalar", "one number", "in the header") for name in beside(declaration)]
    total = size(sum(one.bytes for one in sizes.values()))
    much = f"{count_noun(len(tensors), 'tensor')} of {total} and {count_noun(len(scalars), 'scalar')}"
    much += ", masked so that only the sum of all clients’ can be read" if declaration.secure else ""
    none = "Nothing: this strategy exchanges no parameters."
    return Declared(
        caption=f"All that an update may hold under strategy {declaration.strategy}",
        sentence=f"{much}, and nothing else." if tensors or scalars else none,
        fields=(*tensors, *scalars),
    )
