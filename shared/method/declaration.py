"""Declaration of the named tensors and scalars that may leave a client."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from shared.errors import ProtocolError
from shared.message import Message
from shared.method.parameters import Form

DType = Literal["F32", "U32"]

Part = Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,39}$")]
"""Purpose of a run: to train the strategy's model, or the part of the work to which a sum belongs (`Sum.part`)."""
TRAINING: Part = "training"


class TensorSpec(Message):
    """Declared tensor of a fixed shape.

    F32: little-endian float32, of which a round has the mean. U32: integers modulo 2^32, little-endian, of which a
    round has the sum over its clients modulo 2^32.
    """

    name: str = Field(pattern=r"^[a-z0-9_.]{1,120}$", description="name of the tensor", examples=["pooling.weight"])
    dtype: DType = Field("F32", description="F32: float32; U32: integers modulo 2^32")
    shape: tuple[Annotated[int, Field(ge=0, le=1 << 30)], ...] = Field(
        max_length=8, description="length of each axis; empty: a single number", examples=[[64, 64]]
    )

    @property
    def form(self) -> Form:
        """Type and shape as stored and sent."""
        return Form(self.dtype, self.shape)


class Declaration(Message):
    """Tensors, reports and scalars that a strategy may send, and nothing else.

    tensors: sent in both directions. reports: tensors that only go up, from a client to the aggregator. broadcasts:
    tensors that only come down, the same for every client. secure: tensors, reports and scalars are masked and only
    their sum can be read, except for the scalars that the strategy declares as visible. sums: declarations of
    the runs that sum statistics, by part; empty: there are no such runs.
    """

    strategy: str = Field(max_length=60, description="the strategy's name", examples=["lpsfed"])
    tensors: tuple[TensorSpec, ...] = Field(max_length=10_000, description="tensors sent in both directions")
    scalars: tuple[str, ...] = Field(max_length=20, description="names of single numbers", examples=[["margin", "rho"]])
    secure: bool = Field(
        False, description="whether updates are masked, so that only their sum over the clients can be read"
    )
    reports: tuple[TensorSpec, ...] = Field(
        (), max_length=10_000, description="tensors sent only by the clients", exclude_if=lambda reports: not reports
    )
    broadcasts: tuple[TensorSpec, ...] = Field(
        (),
        max_length=10_000,
        description="tensors sent only to the clients",
        exclude_if=lambda broadcasts: not broadcasts,
    )
    sums: dict[Part, Declaration] = Field(
        {},
        max_length=20,
        description="declarations of the runs that sum statistics, by part; empty: there are no such runs",
        exclude_if=lambda sums: not sums,
    )

    @model_validator(mode="before")
    @classmethod
    def _read_one_sum(cls, data: Any) -> Any:
        """Reads the field of earlier versions, which had one sum, of the part basis."""
        if not isinstance(data, dict) or "basis" not in data:
            return data
        others = {name: value for name, value in data.items() if name != "basis"}
        return others if data["basis"] is None else {**others, "sums": {"basis": data["basis"]}}

    def of_part(self, part: Part) -> Declaration:
        """Returns the declaration of a run of this part; ProtocolError for no such part."""
        if part == TRAINING:
            return self.model_copy(update={"sums": {}})
        if part not in self.sums:
            known = " or ".join(map(repr, (TRAINING, *self.sums)))
            raise ProtocolError(f"part: expected {known}, as this federation declares, got {part!r}")
        return self.sums[part]

    @property
    def parts(self) -> tuple[Declaration, ...]:
        """Declarations of all parts that a run may have."""
        return (self.of_part(TRAINING), *self.sums.values())

    def with_tensors(self, names: Collection[str]) -> Declaration:
        """Returns the part that sends tensors of these names; else that of training.

        The comparison with training then shows the difference.
        """
        matching = (one for one in self.parts if {spec.name for spec in one.uploaded} == set(names))
        return next(matching, self.of_part(TRAINING))

    @property
    def uploaded(self) -> tuple[TensorSpec, ...]:
        """Tensors of an update's body."""
        return (*self.tensors, *self.reports)

    @property
    def answered(self) -> tuple[TensorSpec, ...]:
        """Tensors of an answer to a client."""
        return (*self.tensors, *self.broadcasts)


class Counts(Message):
    """Graph sizes that a client may agree to give for the anchor (opt-in)."""

    users: int = Field(ge=1, lt=1 << 40, description="users of the graph", examples=[1000])
    items: int = Field(ge=1, lt=1 << 40, description="items of the graph", examples=[1000])
    edges: int = Field(ge=1, lt=1 << 40, description="pairs of a user and an item", examples=[20_000])


def describe_difference(expected: Declaration, observed: Declaration) -> str | None:
    """Describes the first field in which two declarations differ; None if equal."""
    for field in ("strategy", "secure", "scalars"):
        ours, theirs = getattr(expected, field), getattr(observed, field)
        if ours != theirs:
            return f"{field}: expected {_plain(ours)!r}, got {_plain(theirs)!r}"
    for field in ("tensors", "reports", "broadcasts"):
        if (difference := _different_tensor(getattr(expected, field), getattr(observed, field))) is not None:
            return f"{field}: {difference}"
    parts = sorted(expected.sums.keys() | observed.sums.keys())
    sums = (_different_sum(part, expected.sums.get(part), observed.sums.get(part)) for part in parts)
    return next((found for found in sums if found is not None), None)


def _different_sum(part: Part, expected: Declaration | None, observed: Declaration | None) -> str | None:
    if expected is not None and observed is not None:
        return None if (found := describe_difference(expected, observed)) is None else f"{part}: {found}"
    words = ["no sum" if side is None else "a sum" for side in (expected, observed)]
    return f"{part}: expected {words[0]}, got {words[1]}"


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _different_tensor(expected: Sequence[TensorSpec], observed: Sequence[TensorSpec]) -> str | None:
    """Describes the first tensor, by name, that differs; None if none does."""
    if len(names := {spec.name for spec in observed}) != len(observed):
        return f"expected each name once, got {len(observed)} tensors of {len(names)} names"
    ours, theirs = ({spec.name: spec.form for spec in side} for side in (expected, observed))
    for name in sorted(ours.keys() | theirs.keys()):
        if (difference := _different_form(name, ours.get(name), theirs.get(name))) is not None:
            return difference
    return None


def _different_form(name: str, ours: Form | None, theirs: Form | None) -> str | None:
    """Describes how the shapes of a tensor differ, or else the types."""
    if ours == theirs:
        return None
    if ours is not None and theirs is not None and ours.shape == theirs.shape:
        return f"expected {name!r} of type {ours.dtype}, got {theirs.dtype}"
    shapes = ["none" if form is None else list(form.shape) for form in (ours, theirs)]
    return f"expected {name!r} of shape {shapes[0]}, got {shapes[1]}"
