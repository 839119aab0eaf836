"""Tensors, each with the rule of its start, and a seed -> the values that a run begins with.

The arithmetic is numpy alone, so that the aggregator can hand out the start without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shared.errors import SettingsError
from shared.method.exchange import Shape, Tensor
from shared.method.parameters import STORED, Array, blocks

Draw = Callable[[int], NDArray[np.float64]]
"""count -> so many values, the next ones of the run's generator."""


def initial_parameters(tensors: Sequence[Tensor], seed: int, *, exact: bool) -> dict[str, Array]:
    """Values by the tensors' rules, in their order, the same on every machine for the same seed.

    exact: a run begins exactly at its base path, so that tensors behind it are zero. SettingsError for another rule.
    """
    generator = np.random.default_rng(seed)
    values = {tensor.name: _fill(tensor, _rule(tensor, generator)) for tensor in tensors}
    zero = {tensor.name for tensor in tensors if exact and tensor.zero_at_exact_start}
    return {name: np.zeros_like(value) if name in zero else value for name, value in values.items()}


def _fill(tensor: Tensor, draw: Draw) -> Array:
    """Drawn in float64, block by block: the same numbers with less memory."""
    values = np.empty(tensor.shape, dtype=STORED[tensor.dtype])
    flat = values.reshape(-1)
    for begin, end in blocks(flat.size):
        flat[begin:end] = draw(end - begin)
    return values


def _rule(tensor: Tensor, generator: np.random.Generator) -> Draw:
    """xavier, zeros, ones; uniform:<limit>, normal:<deviation> and constant:<value> with a number. U32: zeros alone."""
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
    """Of a weight (out, in): sqrt(6 / (in + out))."""
    return math.sqrt(6.0 / max(1, sum(shape)))


def _number(tensor: Tensor, text: str) -> float:
    try:
        return float(text or 0.0)
    except ValueError:
        raise SettingsError(f"start of {tensor.name!r}: expected a number behind the colon, got {text!r}") from None
