"""Computes scores and probabilities of classes from a node's powers P^k x, with numpy alone.

One form serves closed forms and networks: a mix of the powers, layers with ReLU between them, and a linear part beside.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.arrays import Arrays

Float64 = NDArray[np.float64]


class NodeScorer:
    """Scorer of classes by a node's powers, (m, J + 1, d).

    mix: weights (J + 1, d) by which powers are added up to one row before the layers; without it they are laid side by
    side. layer-<i>-weight (out, in), layer-<i>-bias: layers with ReLU between them. linear (J + 1, d, c), bias (c,):
    added to what the last layer gives. calibration (2, c): factors and summands of the scores before the softmax.
    """

    def __init__(self, arrays: Arrays, hops: int, width: int, classes: int) -> None:
        """Takes the arrays of a compiled model. ValueError for arrays of other sizes."""
        self.mix: Float64 | None = _wide(arrays.get("mix"))
        self.linear: Float64 | None = _wide(arrays.get("linear"))
        self.bias = np.asarray(arrays["bias"], dtype=np.float64)
        self.factors, self.summands = np.asarray(arrays["calibration"], dtype=np.float64)
        count = sum(name.startswith("layer-") and name.endswith("-weight") for name in arrays)
        self.layers = [
            (np.asarray(arrays[f"layer-{at}-weight"], np.float64), np.asarray(arrays[f"layer-{at}-bias"], np.float64))
            for at in range(count)
        ]
        entered = width if self.mix is not None else (hops + 1) * width
        for weight, bias in self.layers:
            if weight.shape != (len(bias), entered):
                raise ValueError(f"a layer from {entered:,} numbers, got one of shape {weight.shape}")
            entered = len(bias)
        shapes = {
            "mix": (self.mix, (hops + 1, width)),
            "linear": (self.linear, (hops + 1, width, classes)),
            "bias": (self.bias, (classes,)),
            "calibration": (self.factors, (classes,)),
        }
        for name, (array, shape) in shapes.items():
            if array is not None and array.shape != shape:
                raise ValueError(f"{name}.npy of shape {shape}, got {array.shape}")
        if self.layers and entered != classes:
            raise ValueError(f"a last layer to {classes} classes, got one to {entered}")

    def score(self, powers: Float64) -> Float64:
        """Computes scores (m, c), before calibration."""
        found = np.tile(self.bias, (len(powers), 1))
        if self.linear is not None:
            found += np.tensordot(powers, self.linear, axes=2)
        if self.layers:
            hidden = self._layer_inputs(powers)
            for weight, bias in self.layers[:-1]:
                hidden = np.maximum(hidden @ weight.T + bias, 0.0)
            weight, bias = self.layers[-1]
            found += hidden @ weight.T + bias
        return found

    def score_gradient(self, powers: Float64, column: int) -> Float64:
        """Computes the derivatives of a class's score by one node's powers, (J + 1, d).

        The score is piecewise linear: near a node it is the sum of powers times these slopes, and a constant.
        """
        found = np.zeros_like(powers)
        if self.linear is not None:
            found += self.linear[:, :, column]
        if not self.layers:
            return found
        hidden, active = self._layer_inputs(powers[None])[0], []
        for weight, bias in self.layers[:-1]:
            hidden = hidden @ weight.T + bias
            active.append(hidden > 0.0)
            hidden = np.maximum(hidden, 0.0)
        back = self.layers[-1][0][column]
        for (weight, _), kept in zip(self.layers[-2::-1], active[::-1], strict=True):
            back = (back * kept) @ weight
        found += back.reshape(powers.shape) if self.mix is None else self.mix * back
        return found

    def calibrate(self, scores: Float64) -> Float64:
        """Turns scores into probabilities that add up to 1, (m, c)."""
        scaled = scores * self.factors + self.summands
        powers: Float64 = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        powers /= powers.sum(axis=1, keepdims=True)
        return powers

    def _layer_inputs(self, powers: Float64) -> Float64:
        if self.mix is None:
            return powers.reshape(len(powers), -1)
        mixed: Float64 = (powers * self.mix).sum(axis=1)
        return mixed


def _wide(array: NDArray[np.floating] | None) -> Float64 | None:
    return None if array is None else np.asarray(array, dtype=np.float64)
