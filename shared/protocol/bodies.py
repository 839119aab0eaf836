"""Parameters -> the bytes that `shared.protocol.wire.encode` writes, piece by piece: no body is in memory whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shared.errors import ProtocolError
from shared.method.exchanged import Parameters, Scalars
from shared.method.parameters import STORED, Array, Form, form, stored_parts

PIECE = 1 << 18  # values; a megabyte
LENGTH_BYTES = 8  # before the header: its length, little-endian
ALIGNED = 8  # the header is filled up with spaces to a multiple of so many bytes
ORDER = tuple(STORED)


def scalars_text(scalars: Scalars) -> str:
    """Scalars as exact decimal text, in the order of their names. ValueError for one that is not finite."""
    return json.dumps({name: float(value) for name, value in sorted(scalars.items())}, allow_nan=False)


def head(forms: Mapping[str, Form], scalars: Scalars) -> bytes:
    """All of a body before its values: the header's length and the header, as safetensors writes both."""
    return head_of(forms, {"scalars": scalars_text(scalars)})


def head_of(forms: Mapping[str, Form], metadata: Mapping[str, str]) -> bytes:
    """The same with any metadata."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for name in names_in_order(forms):
        end = begin + forms[name].bytes
        entries[name] = {"dtype": forms[name].dtype, "shape": list(forms[name].shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def names_in_order(forms: Mapping[str, Form]) -> list[str]:
    """The tensors' names in the order of a body: by type, then by name."""
    return sorted(forms, key=lambda name: (ORDER.index(forms[name].dtype), name))


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


def tensor_names(body: bytes) -> frozenset[str]:
    """The names of a body's tensors, as its header says. ProtocolError for a body without such a header."""
    length = int.from_bytes(body[:LENGTH_BYTES], "little")
    try:
        header = json.loads(body[LENGTH_BYTES : LENGTH_BYTES + length])
    except (ValueError, RecursionError):
        raise ProtocolError("expected a safetensors body, got another") from None
    if not isinstance(header, dict):
        raise ProtocolError("expected a safetensors body, got another")
    return frozenset(header) - {"__metadata__"}


def is_body_of(path: str | Path, front: bytes, size: int) -> bool:
    """Does a stored body begin with these very bytes, and has it this size?"""
    with open(path, "rb") as file:
        return file.read(len(front)) == front and os.stat(path).st_size == size


def body_size(forms: Mapping[str, Form], scalars: Scalars) -> int:
    """Bytes of the whole body."""
    return len(head(forms, scalars)) + sum(form.bytes for form in forms.values())


def pieces(parameters: Parameters) -> Iterator[bytes]:
    """The body in pieces of at most a megabyte. An array on disk is read by these pieces too."""
    forms = {name: form(parameters.arrays, name) for name in parameters.arrays}
    yield head(forms, parameters.scalars)
    for name in names_in_order(forms):
        spans = ((begin, min(begin + PIECE, forms[name].size)) for begin in range(0, forms[name].size, PIECE))
        yield from (stored.tobytes() for stored in stored_parts(parameters.arrays, name, spans))


class StoredPlace(NamedTuple):
    """Where an array of a stored body begins, in bytes from the file's start, and its form."""

    begin: int
    form: Form

    def part(self, begin: int, end: int) -> StoredPlace:
        """Of some of its values, in row order."""
        dtype, numbers = self.form.dtype, range(self.form.size)[begin:end]
        return StoredPlace(self.begin + Form(dtype, (begin,)).bytes, Form(dtype, (len(numbers),)))


def places(path: str | Path) -> dict[str, StoredPlace]:
    """Where each array of a stored body is."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        entries = json.loads(file.read(length))
    start = LENGTH_BYTES + length
    found = {name: entry for name, entry in entries.items() if name != "__metadata__"}
    return {name: _place(start, entry) for name, entry in found.items()}


def _place(start: int, entry: Mapping[str, Any]) -> StoredPlace:
    return StoredPlace(start + entry["data_offsets"][0], Form(entry["dtype"], tuple(entry["shape"])))


def read_array(path: str | Path, place: StoredPlace) -> Array:
    """One array of a stored body; ProtocolError where the file ends before. Not mapped: a failing disk only raises."""
    begin, (dtype, shape) = place
    if begin + place.form.bytes > os.stat(path).st_size:
        raise ProtocolError(f"expected {place.form.size} values from byte {begin} on, got a file that ends before")
    return np.fromfile(path, dtype=STORED[dtype], count=place.form.size, offset=begin).reshape(shape)
