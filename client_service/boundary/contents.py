"""The tensors of an update's body -> what the ledger keeps of them: names, shapes, lengths and digests, no values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from shared.method.declaration import Declaration
from shared.method.parameters import Array, form_of
from shared.protocol.secure.vector import SCALARS


def describe_tensors(declaration: Declaration, tensors: Mapping[str, Array]) -> list[dict[str, Any]]:
    """An entry for each, in this order. up_only: the aggregator sends it to nobody. declaration: of all that may leave;
    masked scalars are a tensor that it does not name."""
    part = declaration.with_tensors(frozenset(tensors) - {SCALARS})
    reports = {spec.name for spec in part.reports}
    return [
        _describe_tensor(name, value) | ({"up_only": True} if name in reports else {})
        for name, value in tensors.items()
    ]


def _describe_tensor(name: str, value: Array) -> dict[str, Any]:
    form, content = form_of(value), value.tobytes()
    return {
        "name": name,
        "dtype": form.dtype,
        "shape": list(form.shape),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
