"""Tensors that clients exchange, by model, with initial values and scalar ranges."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import DType, TensorSpec
from shared.method.parameters import STORED, Array, blocks

if TYPE_CHECKING:
    from shared.method.settings import MethodSettings

ROUNDING = 1e-4  # beyond an exact bound: a sum of many float32 may be a little outside


@dataclass(frozen=True)
class Range:
    """Numbers from `least` to `most`, both included."""

    least: float
    most: float

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most

    def clamp(self, value: float) -> float:
        """Returns the nearest number in the range.

        Noise added before still protects the value afterwards.
        """
        return min(max(value, self.least), self.most)


Ranges = Mapping[str, Range]


def require_in_ranges(ranges: Ranges, scalars: Mapping[str, float]) -> None:
    """Raises ProtocolError for a scalar outside its range.

    The message holds the number, so it is for the sender only, and for no log.
    """
    for name, value in sorted(scalars.items()):
        if value not in ranges[name]:
            expected = f"{ranges[name].least:g} to {ranges[name].most:g}"
            raise ProtocolError(f"{name}: expected a number from {expected}, got {value:g}")


def clamp_scalars(ranges: Ranges, scalars: Mapping[str, float]) -> dict[str, float]:
    """Moves every scalar into its range, where noise has carried it out."""
    return {name: ranges[name].clamp(value) for name, value in scalars.items()}


Draw = Callable[[int], NDArray[np.float64]]
"""(count) -> the next `count` values of the run's generator."""


def initial_parameters(tensors: Sequence[Tensor], seed: int, *, exact: bool) -> dict[str, Array]:
    """Draws initial values by the tensors' rules, the same for the same seed.

    exact: a run begins exactly at its base path, so that tensors behind it are zero. Raises SettingsError for another
    rule.
    """
    generator = np.random.default_rng(seed)
    values = {tensor.name: _fill(tensor, _rule(tensor, generator)) for tensor in tensors}
    zero = {tensor.name for tensor in tensors if exact and tensor.zero_at_exact_start}
    return {name: np.zeros_like(value) if name in zero else value for name, value in values.items()}


def _fill(tensor: Tensor, draw: Draw) -> Array:
    """Draws values in float64 block by block, which takes less memory."""
    values = np.empty(tensor.shape, dtype=STORED[tensor.dtype])
    flat = values.reshape(-1)
    for begin, end in blocks(flat.size):
        flat[begin:end] = draw(end - begin)
    return values


def _rule(tensor: Tensor, generator: np.random.Generator) -> Draw:
    """Returns the drawing function of a tensor's start rule.

    xavier, zeros, ones; uniform:<limit>, normal:<deviation> and constant:<value> with a number. U32: zeros alone.
    """
    if tensor.dtype == "U32" and tensor.start != "zeros":
        raise SettingsError(f"start of {tensor.name!r}: expected zeros for a sum of integers, got {tensor.start!r}")
    kind, _, text = tensor.start.partition(":")
    number = _number(tensor, text)
    rules: dict[tuple[str, bool], Draw] = {
        ("zeros", False): np.zeros,
        ("ones", False): np.ones,
        ("xavier", False): _uniform(generator, _xavier_limit(tensor.shape)),
        ("uniform", True): _uniform(generator, number),
        ("normal", True): lambda count: generator.normal(0.0, number, count),
        ("constant", True): lambda count: np.full(count, number),
    }
    if (kind, bool(text)) not in rules:
        known = "xavier, zeros, ones, uniform:<limit>, normal:<deviation> or constant:<value>"
        raise SettingsError(f"start of {tensor.name!r}: expected {known}, got {tensor.start!r}")
    return rules[kind, bool(text)]


def _uniform(generator: np.random.Generator, limit: float) -> Draw:
    return lambda count: generator.uniform(-limit, limit, count)


def _xavier_limit(shape: Shape) -> float:
    """Computes Xavier's limit of a weight (out, in): sqrt(6 / (in + out))."""
    return math.sqrt(6.0 / max(1, sum(shape)))


def _number(tensor: Tensor, text: str) -> float:
    try:
        return float(text or 0.0)
    except ValueError:
        raise SettingsError(f"start of {tensor.name!r}: expected a number behind the colon, got {text!r}") from None


ITEM_TABLE = "item.table"
TABLE_DEVIATION = 0.1  # initial standard deviation of an item table's rows, drawn at random or from the items' text
FUSION = "fusion."  # prefix of the tensors of FedUTR's fusion of text and interactions
RANDOM_START, TEXT_START = "random", "text"
SIDES = ("item", "user")
Shape = tuple[int, ...]


class Tensor(NamedTuple):
    """Tensor that clients can exchange, with its start rule.

    start: a rule of `shared.method.tensors`, such as "xavier", "zeros" or "normal:0.1". zero_at_exact_start: its
    draws are made, and then it is zero, where a run begins exactly at its base path. dtype: a U32 tensor is summed
    and not averaged, and begins as "zeros".
    """

    name: str
    shape: Shape
    start: str = "xavier"
    zero_at_exact_start: bool = False
    dtype: DType = "F32"

    @property
    def spec(self) -> TensorSpec:
        """Tensor as declared."""
        return TensorSpec(name=self.name, dtype=self.dtype, shape=self.shape)


def mlp_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of the pooling MLP (Eq. 4) and the predictive MLP (Eq. 5).

    Sorted by name. pooling: (L + 1) d -> d -> d on the concatenated layers. predictive: 3 d -> d -> 1 on
    [u, v, u * v].
    """
    width, layers = sizes.width, sizes.layers
    weights = {
        "pooling.hidden": (width, (layers + 1) * width),
        "pooling.output": (width, width),
        "predictive.hidden": (width, 3 * width),
        "predictive.output": (1, width),
    }
    return _with_biases(weights)


def kernel_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of the kernel MLP, with one output for each convolution.

    Encoded eigenvalue -> d -> L.
    """
    width = sizes.width
    return _with_biases({"kernel.hidden": (width, encoded_width(width)), "kernel.output": (sizes.layers, width)})


def kernel_and_mlp_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of the kernel MLP and of both other MLPs."""
    return (*kernel_specification(sizes), *mlp_specification(sizes))


def table_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the item table: one row for each item of the federation's catalogue."""
    if sizes.catalogue == 0:
        raise SettingsError("catalogue: expected the size of a shared item catalogue, because items are shared, got 0")
    # Xavier would make the rows of a long catalogue so small that nothing is learnt.
    start = "zeros" if begins_at_text(sizes.item_start) else f"normal:{TABLE_DEVIATION}"
    return (Tensor(ITEM_TABLE, (sizes.catalogue, sizes.width), start),)


def begins_at_text(item_start: str) -> bool:
    """Tells whether items begin at their text.

    Then a silo adds it to the rows of the table, which begin at zero.
    """
    return item_start not in ("", RANDOM_START)


def fusion_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of FedUTR, the item table and the fusion.

    They are E, and W, b of ReLU(E W^T + b) with a layer's gain and shift: d^2 + 3 d numbers besides the table.
    """
    width = sizes.width
    starts = {"bias": "zeros", "gain": "ones", "shift": "zeros"}
    vectors = tuple(Tensor(f"{FUSION}{name}", (width,), start) for name, start in starts.items())
    (table,) = table_specification(sizes)
    if not sizes.item_start:
        table = table._replace(start="zeros")
    return (*vectors, Tensor(f"{FUSION}weight", (width, width)), table)


def attention_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the item table and the semantic attention over meta-paths, for both sides.

    q tanh(W z + b), for users and for items.
    """
    width = sizes.width
    shapes = {"bias": (width,), "query": (1, width), "weight": (width, width)}
    starts = {"bias": "zeros", "query": "xavier", "weight": "xavier"}
    attention = (Tensor(f"attention.{side}.{n}", shapes[n], starts[n]) for side in SIDES for n in shapes)
    return (*attention, *table_specification(sizes))


def session_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of SR-GNN: the item table and 15 d^2 + 14 d numbers.

    Each begins uniform in +-1 / sqrt(d), biases too.
    """
    if begins_at_text(sizes.item_start):
        raise SettingsError(f"item_start: expected {RANDOM_START} with a session model, got {sizes.item_start!r}")
    width, (table,) = sizes.width, table_specification(sizes)
    start = f"uniform:{width**-0.5!r}"
    linear = {"edges.incoming": 1, "edges.outgoing": 1, "attention.last": 1, "attention.each": 1, "transform": 2}
    shapes: dict[str, Shape] = {
        "attention.query.weight": (1, width),
        "cell.bias_hh": (3 * width,),
        "cell.bias_ih": (3 * width,),
        "cell.weight_hh": (3 * width, width),
        "cell.weight_ih": (3 * width, 2 * width),
        "edges.incoming_bias": (width,),
        "edges.outgoing_bias": (width,),
        table.name: table.shape,
    }
    shapes |= {f"{name}.weight": (width, inputs * width) for name, inputs in linear.items()}
    shapes |= {f"{name}.bias": (width,) for name in linear}
    return tuple(Tensor(name, shape, start) for name, shape in sorted(shapes.items()))


def target_attention_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of TAGNN: SR-GNN's and d^2 numbers of target attention."""
    attention = Tensor("target.weight", (sizes.width, sizes.width), f"uniform:{sizes.width**-0.5!r}")
    return (*session_specification(sizes), attention)


def count_outputs(sizes: MethodSettings) -> int:
    """Counts the outputs of a network of nodes: one for two classes, else c.

    SettingsError for unknown sizes.
    """
    if min(sizes.nodes.features, sizes.nodes.classes) < 1:
        got = f"{sizes.nodes.features} and {sizes.nodes.classes}"
        words = "expected the numbers of features and classes that all silos of nodes share"
        raise SettingsError(f"nodes.features, nodes.classes: {words}, got {got}: set both")
    return 1 if sizes.nodes.classes == 2 else sizes.nodes.classes


def unifilter_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of UniFilter: K + 1 coefficients and two layers.

    A layer F -> d, and the predictive one.
    """
    outputs, order = count_outputs(sizes), sizes.nodes.order
    layers = {"hidden": (sizes.width, sizes.nodes.features), "predictive": (outputs, sizes.width)}
    return (Tensor("filter.weight", (order + 1,), f"constant:{1 / (order + 1)!r}"), *_with_biases(layers))


def sage_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of SAGE: an input layer, L layers, and the predictive one.

    The input layer is F -> d. Each tensor of the L layers has all of them.
    """
    outputs, width, layers = count_outputs(sizes), sizes.width, sizes.layers
    limit = f"uniform:{math.sqrt(3.0 / width)!r}"
    matrices = tuple(Tensor(f"layers.{name}", (layers, width, width), limit) for name in ("neighbours", "own"))
    starts = {"bias": "zeros", "gain": "ones", "shift": "zeros"}
    vectors = tuple(Tensor(f"layers.{name}", (layers, width), start) for name, start in starts.items())
    ends = _with_biases({"input": (width, sizes.nodes.features), "predictive": (outputs, width)})
    return (*matrices, *vectors, *ends)


def empty_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists no tensor: a closed form follows from the shard and from sums."""
    del sizes
    return ()


def encoded_width(width: int) -> int:
    """Returns how many numbers encode an eigenvalue.

    They are the eigenvalue, and its sine and cosine at each of width // 2 frequencies, at least one.
    """
    return 1 + 2 * max(1, width // 2)


def _with_biases(weights: Mapping[str, Shape]) -> tuple[Tensor, ...]:
    """Lists the weights of linear layers with zero biases, by name.

    weights: (out, in). Output layers are zero at an exact start.
    """
    tensors = [
        tensor
        for name, shape in weights.items()
        for tensor in (
            Tensor(f"{name}.weight", shape, zero_at_exact_start=name.endswith(".output")),
            Tensor(f"{name}.bias", shape[:1], "zeros"),
        )
    ]
    return tuple(sorted(tensors))


@dataclass(frozen=True)
class ExchangeableTensors:
    """Tensors that clients with a model can exchange, by the settings.

    starts_at_filter: the model has a base path that can begin at a low-pass filter (`start` = exact), so that its
    MLPs begin with nothing to add to it. task: what its data are, interactions of users with items, sessions, or
    graphs of nodes. item_start: where the rows of its items begin, where the settings do not say it. whole_batch:
    with the usual batch size a local epoch is one step, on all examples.
    """

    tensors: Callable[[MethodSettings], tuple[Tensor, ...]]
    starts_at_filter: bool = False
    task: str = "items"
    item_start: str = RANDOM_START
    whole_batch: bool = False

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the tensors, the same with all settings."""
        from shared.method.node_settings import NodeSettings
        from shared.method.settings import MethodSettings  # which ask this registry for the models' names

        sizes = MethodSettings(width=1, layers=1, catalogue=1, nodes=NodeSettings(features=1, classes=2))
        return frozenset(spec.name for spec in self.tensors(sizes))


EXCHANGES: dict[str, ExchangeableTensors] = {
    "lgcn": ExchangeableTensors(mlp_specification, starts_at_filter=True),
    "masked": ExchangeableTensors(mlp_specification, starts_at_filter=True),
    "frequency": ExchangeableTensors(kernel_and_mlp_specification, starts_at_filter=True),
    "ngcf": ExchangeableTensors(mlp_specification),
    "mf": ExchangeableTensors(table_specification),
    "pfedrec": ExchangeableTensors(table_specification),
    "fedrap": ExchangeableTensors(table_specification),
    "fedutr": ExchangeableTensors(fusion_specification, item_start=TEXT_START),
    "fedutr_sar": ExchangeableTensors(fusion_specification, item_start=TEXT_START),
    "attention": ExchangeableTensors(table_specification),
    "metapath": ExchangeableTensors(attention_specification),
    "srgnn": ExchangeableTensors(session_specification, task="sessions"),
    "tagnn": ExchangeableTensors(target_attention_specification, task="sessions"),
    "unifilter": ExchangeableTensors(unifilter_specification, task="nodes", whole_batch=True),
    "masked_unifilter": ExchangeableTensors(unifilter_specification, task="nodes", whole_batch=True),
    "sage": ExchangeableTensors(sage_specification, task="nodes", whole_batch=True),
    "node_ridge": ExchangeableTensors(empty_specification, task="nodes"),
}
