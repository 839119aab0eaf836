"""What may leave a client in one update: named tensors and named scalars, agreed before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from shared.message import Message
from shared.method.parameters import Form

DType = Literal["F32", "U32"]


class TensorSpec(Message):
    """One declared tensor of this shape.

    F32: little-endian float32, of which a round has the mean. U32: integers modulo 2^32, little-endian, of which a
    round has the sum over its clients modulo 2^32.
    """

    name: str = Field(pattern=r"^[a-z0-9_.]{1,120}$")
    dtype: DType = "F32"
    shape: tuple[Annotated[int, Field(ge=0, le=1 << 30)], ...] = Field(max_length=8)

    @property
    def form(self) -> Form:
        """As it is stored and sent."""
        return Form(self.dtype, self.shape)


class Declaration(Message):
    """All that a strategy may send: these tensors and reports, at most these scalars, nothing else.

    tensors: sent in both directions. reports: tensors that only go up, from a client to the aggregator. secure:
    tensors, reports and scalars are masked and only their sum can be read, except for the scalars that the strategy
    declares as visible.
    """

    strategy: str = Field(max_length=60)
    tensors: tuple[TensorSpec, ...] = Field(max_length=10_000)
    scalars: tuple[str, ...] = Field(max_length=20)
    secure: bool = False
    reports: tuple[TensorSpec, ...] = Field((), max_length=10_000, exclude_if=lambda reports: not reports)

    @property
    def uploaded(self) -> tuple[TensorSpec, ...]:
        """Every tensor of an update's body."""
        return (*self.tensors, *self.reports)


class Counts(Message):
    """Graph sizes that a client may agree to give for the anchor (opt-in)."""

    users: int = Field(ge=1, lt=1 << 40)
    items: int = Field(ge=1, lt=1 << 40)
    edges: int = Field(ge=1, lt=1 << 40)


def describe_difference(expected: Declaration, observed: Declaration) -> str | None:
    """The first field in which two declarations differ, what was expected and what came; None where they are equal."""
    for field in ("strategy", "secure", "scalars"):
        ours, theirs = getattr(expected, field), getattr(observed, field)
        if ours != theirs:
            return f"{field}: expected {_plain(ours)!r}, got {_plain(theirs)!r}"
    for field in ("tensors", "reports"):
        if (difference := _different_tensor(getattr(expected, field), getattr(observed, field))) is not None:
            return f"{field}: {difference}"
    return None


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _different_tensor(expected: Sequence[TensorSpec], observed: Sequence[TensorSpec]) -> str | None:
    """The first tensor, in the order of names, that one side has not, or has in another form or more than once."""
    if len(names := {spec.name for spec in observed}) != len(observed):
        return f"expected each name once, got {len(observed)} tensors of {len(names)} names"
    ours, theirs = ({spec.name: spec.form for spec in side} for side in (expected, observed))
    for name in sorted(ours.keys() | theirs.keys()):
        if (difference := _different_form(name, ours.get(name), theirs.get(name))) is not None:
            return difference
    return None


def _different_form(name: str, ours: Form | None, theirs: Form | None) -> str | None:
    """Which shape was expected and which came; of one shape, which type."""
    if ours == theirs:
        return None
    if ours is not None and theirs is not None and ours.shape == theirs.shape:
        return f"expected {name!r} of type {ours.dtype}, got {theirs.dtype}"
    shapes = ["none" if form is None else list(form.shape) for form in (ours, theirs)]
    return f"expected {name!r} of shape {shapes[0]}, got {shapes[1]}"
