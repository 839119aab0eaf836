"""Parameters -> the bytes that `shared.protocol.wire.encode` writes, piece by piece: no body is in memory whole."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from shared.errors import ProtocolError
from shared.method.exchanged import Parameters, Scalars
from shared.method.parameters import Float32

Shape = tuple[int, ...]
PIECE = 1 << 18  # values; a megabyte
LENGTH_BYTES = 8  # before the header: its length, little-endian
ALIGNED = 8  # the header is filled up with spaces to a multiple of so many bytes
VALUE_BYTES = 4
DTYPE, MASKED_DTYPE = "F32", "U64"
BYTES_OF = {DTYPE: VALUE_BYTES, MASKED_DTYPE: 8}


def scalars_text(scalars: Scalars) -> str:
    """Scalars as exact decimal text, in the order of their names. ValueError for one that is not finite."""
    return json.dumps({name: float(value) for name, value in sorted(scalars.items())}, allow_nan=False)


def head(shapes: Mapping[str, Shape], scalars: Scalars) -> bytes:
    """All of a body before its values: the header's length and the header, as safetensors writes both."""
    return head_of({name: (DTYPE, shape) for name, shape in shapes.items()}, {"scalars": scalars_text(scalars)})


def head_of(tensors: Mapping[str, tuple[str, Shape]], metadata: Mapping[str, str]) -> bytes:
    """The same of tensors of any declared type."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for name, (dtype, shape) in sorted(tensors.items()):
        end = begin + BYTES_OF[dtype] * math.prod(shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def require_short_head(start: bytes, longest: int) -> None:
    """ProtocolError for a body whose first bytes announce a longer head. A reader of safetensors takes a head of any
    length apart, in memory: a million tensors without values are a few megabytes on the way and a gigabyte there."""
    announced = int.from_bytes(start[:LENGTH_BYTES], "little")
    if len(start) < LENGTH_BYTES or announced > longest:
        raise ProtocolError(f"expected a safetensors body with a head of at most {longest} bytes, got {announced}")


def metadata_of(body: bytes) -> Mapping[str, str]:
    """The header's metadata, of a body that a reader of safetensors has taken apart."""
    length = int.from_bytes(body[:LENGTH_BYTES], "little")
    metadata: Mapping[str, str] = json.loads(body[LENGTH_BYTES : LENGTH_BYTES + length]).get("__metadata__") or {}
    return metadata


def is_body_of(path: str | Path, front: bytes, size: int) -> bool:
    """Does a stored body begin with these very bytes, and has it this size?"""
    with open(path, "rb") as file:
        return file.read(len(front)) == front and os.stat(path).st_size == size


def body_size(shapes: Mapping[str, Shape], scalars: Scalars) -> int:
    """Bytes of the whole body."""
    values = sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes.values())
    return len(head(shapes, scalars)) + VALUE_BYTES * values


def pieces(parameters: Parameters) -> Iterator[bytes]:
    """The body in pieces of at most a megabyte. Lazy arrays are read twice: for their shapes, then for their values."""
    names = sorted(parameters.arrays)
    yield head({name: np.shape(parameters.arrays[name]) for name in names}, parameters.scalars)
    for name in names:
        yield from _values(parameters.arrays[name])


def _values(array: Float32) -> Iterable[bytes]:
    flat = np.asarray(array, dtype="<f4", order="C").ravel()
    return (flat[begin : begin + PIECE].tobytes() for begin in range(0, flat.size, PIECE))


def places(path: str | Path) -> dict[str, tuple[int, Shape]]:
    """Where each array of a stored body begins, in bytes from the file's start, and its shape."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        entries = json.loads(file.read(length))
    start = LENGTH_BYTES + length
    found = {name: entry for name, entry in entries.items() if name != "__metadata__"}
    return {name: (start + entry["data_offsets"][0], tuple(entry["shape"])) for name, entry in found.items()}


def read_array(path: str | Path, begin: int, shape: Shape) -> Float32:
    """One array of a stored body; ProtocolError where the file ends before. Not mapped: a failing disk only raises."""
    count = int(np.prod(shape, dtype=np.int64))
    if begin + VALUE_BYTES * count > os.stat(path).st_size:
        raise ProtocolError(f"expected {count} values from byte {begin} on, got a file that ends before")
    return np.fromfile(path, dtype="<f4", count=count, offset=begin).reshape(shape)
