"""What may leave a client in one update: named tensors and named scalars, agreed before a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.message import Message


class TensorSpec(Message):
    """One declared tensor: little-endian float32 of this shape."""

    name: str = Field(pattern=r"^[a-z0-9_.]{1,120}$")
    dtype: Literal["F32"] = "F32"
    shape: tuple[Annotated[int, Field(ge=0, le=1 << 30)], ...] = Field(max_length=8)


class Declaration(Message):
    """All that a strategy may send: these tensors, at most these scalars, nothing else.

    `secure`: nothing of one client but its rho is ever readable outside of it; the rest leaves masked, to be summed.
    """

    strategy: str = Field(max_length=60)
    tensors: tuple[TensorSpec, ...] = Field(max_length=10_000)
    scalars: tuple[str, ...] = Field(max_length=20)
    secure: bool = False


class Counts(Message):
    """Graph sizes that a client may agree to give for the anchor (opt-in)."""

    users: int = Field(ge=1, lt=1 << 40)
    items: int = Field(ge=1, lt=1 << 40)
    edges: int = Field(ge=1, lt=1 << 40)
