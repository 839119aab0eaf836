"""Gate: encodes an update exactly as declared, or raises PrivacyError."""

from __future__ import annotations

import math

import numpy as np

from shared.errors import PrivacyError
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import STORED, Parameters
from shared.protocol.wire import encode_body

FEW_CLIENTS = 3


def warn_of_few_clients(joined: int) -> tuple[str, ...]:
    """Lists a warning where the mean is over too few clients to hide one."""
    if joined >= FEW_CLIENTS:
        return ()
    return (
        "with fewer than three clients the mean hides no client's update: with two, the mean and a client's own"
        " parameters tell the other's",
    )


def pass_gate(declaration: Declaration, update: Parameters) -> bytes:
    """Returns the encoded update if it is as declared; else raises PrivacyError."""
    require_declared(declaration, update)
    return encode_body(update)


def require_declared(declaration: Declaration, update: Parameters) -> None:
    """Raises PrivacyError unless the tensors and scalars are as declared, all finite.

    All declared tensors, at most the declared scalars. An array of another dtype than declared is refused, not
    converted.
    """
    _same_tensors(declaration, update)
    if extra := set(update.scalars) - set(declaration.scalars):
        raise PrivacyError(f"expected at most scalars {list(declaration.scalars)}, {len(extra)} more would leave")
    if not all(type(value) is float and math.isfinite(value) for value in update.scalars.values()):
        raise PrivacyError("expected every scalar to be a finite number, got another value")


def _same_tensors(declaration: Declaration, update: Parameters) -> None:
    declared = {spec.name: spec for spec in declaration.uploaded}
    if set(declared) != set(update.arrays):
        extra, missing = len(set(update.arrays) - set(declared)), sorted(set(declared) - set(update.arrays))
        raise PrivacyError(f"expected {len(declared)} declared tensors; {extra} undeclared, missing {missing}")
    for name, spec in declared.items():
        _same_form(spec, np.asarray(update.arrays[name]))


def _same_form(spec: TensorSpec, value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    expected = np.dtype(STORED[spec.dtype])
    if value.dtype != expected or value.shape != spec.shape:
        raise PrivacyError(f"expected {expected} {spec.shape}, got {value.dtype} {value.shape} for {spec.name!r}")
    if not np.isfinite(value).all():
        raise PrivacyError(f"expected finite values in {spec.name!r}, got NaN or infinity")
