"""What may leave a client in one update: named tensors and named scalars, agreed before a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from shared.message import Message


class TensorSpec(Message):
    """One declared tensor: little-endian float32 of this shape."""

    name: str = Field(pattern=r"^[a-z0-9_.]{1,120}$")
    dtype: Literal["F32"] = "F32"
    shape: tuple[Annotated[int, Field(ge=0, le=1 << 30)], ...] = Field(max_length=8)


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
    """The first tensor, in the order of names, that one side has not, or has in another shape or more than once."""
    if len(names := {spec.name for spec in observed}) != len(observed):
        return f"expected each name once, got {len(observed)} tensors of {len(names)} names"
    ours, theirs = ({spec.name: list(spec.shape) for spec in side} for side in (expected, observed))
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            return f"expected {name!r} of shape {ours.get(name, 'none')}, got {theirs.get(name, 'none')}"
    return None
