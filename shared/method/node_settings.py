"""Settings of node labels: sizes that all silos share, closed forms, networks and borders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from shared.message import Message

ColumnName = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]

DEFAULT_NETWORK: Mapping[str, Any] = {"model": "unifilter", "learning_rate": 0.02}
"""Settings of strategies that share parameters; a closed form has none, and a smaller rate trains too slowly."""


class NodeSettings(Message):
    """Settings of node labels, and the sizes that all silos of nodes share."""

    features: int = Field(0, ge=0, le=1 << 20, description="q, number of feature columns; 0: as in the shard")
    classes: int = Field(0, ge=0, le=1 << 10, description="c, number of classes; 0: as in the shard")
    feature_names: tuple[ColumnName, ...] = Field(
        (),
        max_length=4096,
        description=("names of the feature columns in the order of all silos; none: silos share only their number"),
        exclude_if=lambda names: not names,
    )
    class_names: tuple[ColumnName, ...] = Field(
        (),
        max_length=1 << 10,
        description="names of the classes in the order of all silos; none: silos share only their number",
        exclude_if=lambda names: not names,
    )
    hops: int = Field(4, ge=0, le=20, description="K, number of propagations over edges in the closed form")
    directions: int = Field(
        256, ge=8, le=4096, description="number of directions to which more features than these are projected"
    )
    random_features: int = Field(
        300, ge=0, le=4096, description="random ReLU features of the closed form, the same in all silos; 0: none"
    )
    order: int = Field(10, ge=1, le=40, description="unifilter: K, order of the trained filter")
    tau: float = Field(
        1.0, ge=0, le=1, description="unifilter: share of the propagation's powers in each basis; 0: bases at an angle"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="networks: share of a layer's inputs that training drops")
    filter_learning_rate: float | None = Field(
        None, gt=0, le=1, description="unifilter: learning rate of the filter's coefficients; none: learning_rate"
    )
    fraction_bits: int = Field(
        32, ge=8, le=44, description="Gram sums are multiples of 2^-this, and below 2^(53 - this) over all silos"
    )

    border_least: int = Field(
        5, ge=2, le=1000, description="borders: k, smallest number of foreign neighbours of a node whose sums are read"
    )
    border_own: int = Field(
        2,
        ge=2,
        le=1000,
        description="borders: smallest number of a silo's own nodes in a sum that it adds to",
    )
    border_numbers: int = Field(
        1 << 18, ge=1 << 8, le=1 << 24, description="borders: numbers of the table that a silo sends in each round"
    )

    @model_validator(mode="after")
    def _require_own_within_least(self) -> NodeSettings:
        if self.border_own > self.border_least:
            raise ValueError(
                f"expected border_own of at most border_least = {self.border_least}, got {self.border_own}"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _set_sizes_by_names(cls, given: Any) -> Any:
        """Sets sizes that are not given by the number of names.

        Raises ValueError for a name that comes twice, and for another size beside the names.
        """
        if not isinstance(given, dict):
            return given
        found = dict(given)
        for size, names in (("features", "feature_names"), ("classes", "class_names")):
            listed = found.get(names) or ()
            if not isinstance(listed, list | tuple) or not listed:
                continue
            if len(set(listed)) < len(listed):
                raise ValueError(f"{names}: expected different names, got one twice")
            if str(found.get(size) or len(listed)) != str(len(listed)):
                raise ValueError(f"{size}: expected {len(listed)}, as many as {names} has, got {found[size]}")
            found[size] = len(listed)
        return found

    @property
    def projected(self) -> int:
        """Number of columns to which features are projected; 0 if they are not."""
        return self.directions if self.features > self.directions else 0

    @property
    def powers(self) -> tuple[int, ...]:
        """Powers of the propagation in the closed form.

        The design has a block of each, or of projected features their mean.
        """
        return tuple(range(self.hops + 1))

    @property
    def random_width(self) -> int:
        """Number of random features of the closed form: none beside projected ones."""
        return 0 if self.projected else self.random_features

    @property
    def columns(self) -> int:
        """D, number of columns of the design: a constant, powers' blocks, random features."""
        return 1 + (self.projected or len(self.powers) * self.features) + self.random_width
