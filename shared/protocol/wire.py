"""Arrays and scalars as safetensors bodies, whole or piece by piece."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from shared.errors import ProtocolError
from shared.method.declaration import Declaration, DType, TensorSpec
from shared.method.parameters import (
    STORED,
    Array,
    Arrays,
    Form,
    Parameters,
    Scalars,
    Spans,
    array_form,
    memory_form,
    stored_parts,
)

MEDIA_TYPE = "application/vnd.safetensors"
DTYPES = get_args(DType)


def encode_body(parameters: Parameters) -> bytes:
    """Encodes arrays as a safetensors body, with the scalars as decimal text in its metadata."""
    arrays = {name: to_stored_array(value) for name, value in sorted(parameters.arrays.items())}
    return save(arrays, metadata={"scalars": scalars_text(parameters.scalars)})


def to_stored_array(value: Array) -> Array:
    """Returns an array in the type and memory order of a body."""
    return np.asarray(value, dtype=STORED[memory_form(value).dtype], order="C")


class StoredArrays(Mapping[str, Array]):
    """Arrays of a safetensors file, each read when needed, never all in memory."""

    def __init__(self, path: str | Path, header: BodyHeader | None = None) -> None:
        self._path = path
        self._start, self._places, _ = header or _read_header(path)

    def __getitem__(self, name: str) -> Array:
        return self._read(self._place(name))

    def form(self, name: str) -> Form:
        """Returns an array's form from the file's header."""
        return self._places[name].form

    def part(self, name: str, begin: int, end: int) -> Array:
        """Reads some values of an array, in row order."""
        return self._read(self._place(name).part(begin, end))

    def parts(self, spans: Spans) -> Array:
        """Reads values of several arrays of one type, joined."""
        pieces = []
        with open(self._path, "rb", buffering=0) as file:
            for begin, size in self._places.ranges(spans):
                file.seek(self._start + begin)
                pieces.append(file.read(size))
                if len(pieces[-1]) != size:
                    raise ProtocolError(f"expected {size} bytes from byte {self._start + begin} on, got fewer")
        return np.frombuffer(b"".join(pieces), STORED[self._places[spans[0][0]].form.dtype])

    def _read(self, place: StoredPlace) -> Array:
        return read_array(self._path, place)

    def _place(self, name: str) -> StoredPlace:
        begin, form = self._places[name]
        return StoredPlace(self._start + begin, form)

    def __contains__(self, name: object) -> bool:  # that of Mapping would read the array
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class HeldArrays(StoredArrays):
    """Arrays of a small safetensors body, which is in memory whole."""

    def __init__(self, content: bytes, header: BodyHeader) -> None:
        self._content, (self._start, self._places, _) = content, header

    def parts(self, spans: Spans) -> Array:
        """Returns values of several arrays of one type, joined."""
        return np.concatenate([self.part(*span) for span in spans])

    def _read(self, place: StoredPlace) -> Array:
        begin, (dtype, shape) = place
        return np.frombuffer(self._content, STORED[dtype], place.form.size, begin).reshape(shape)


def read_parameters(path: str | Path) -> Parameters:
    """Reads a small body whole that was checked before it was stored."""
    with open(path, "rb") as file:
        content = file.read()
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    header = _parse_header(content[LENGTH_BYTES:start])
    return Parameters(HeldArrays(content, header), _scalars(header.metadata))


def open_checked(path: str | Path) -> Parameters:
    """Opens a body that was checked before it was stored, to be read when needed."""
    header = _read_header(path)
    return Parameters(StoredArrays(path, header), _scalars(header.metadata))


def open_parameters(path: str | Path) -> tuple[tuple[TensorSpec, ...], Parameters]:
    """Opens a stored body; returns its tensors' specification and its content.

    The content is read when needed. Raises ProtocolError if it is malformed.
    """
    try:
        with safe_open(path, framework="numpy") as body:
            specification = tuple(_specification(name, body.get_slice(name)) for name in sorted(body.keys()))
            scalars = _scalars(body.metadata() or {})
    except SafetensorError as error:
        raise ProtocolError(f"expected a safetensors body, got: {error}") from None
    return specification, Parameters(StoredArrays(path), scalars)


def _specification(name: str, piece: object) -> TensorSpec:
    return _claimed(name, piece.get_dtype(), tuple(piece.get_shape()))  # type: ignore[attr-defined]


def _claimed(name: str, dtype: str, shape: tuple[int, ...]) -> TensorSpec:
    """Makes the specification that a body claims, whatever the name and shape."""
    if dtype not in DTYPES:
        raise ProtocolError(f"expected dtype {' or '.join(DTYPES)}, got {dtype} for {name!r}")
    return TensorSpec.model_construct(name=name, dtype=cast(DType, dtype), shape=shape)


def _scalars(metadata: Mapping[str, str]) -> Scalars:
    if set(metadata) - {"scalars"}:
        raise ProtocolError(f"expected the metadata field 'scalars' alone, got {sorted(metadata)}")
    try:
        values = json.loads(metadata.get("scalars", "{}"))
    except (ValueError, RecursionError):
        raise ProtocolError("expected the scalars as JSON, got text that is not") from None
    if not isinstance(values, dict) or not all(type(v) is float for v in values.values()):
        raise ProtocolError("expected the scalars as an object of JSON numbers with a fraction")
    return values


def require_content(declaration: Declaration, specification: tuple[TensorSpec, ...], content: Parameters) -> None:
    """Raises ProtocolError unless content has the declared tensors and at most the scalars.

    All floats must be finite. Integers are not read: each is a number modulo 2^32, whatever its bytes.
    """
    declared = {spec.name: spec for spec in declaration.uploaded}
    came = {spec.name: spec for spec in specification}
    if set(declared) != set(came):
        raise ProtocolError(f"expected tensors {sorted(declared)}, got {sorted(came)}")
    for name, spec in declared.items():
        if spec.shape != came[name].shape:
            raise ProtocolError(f"expected shape {list(spec.shape)}, got {list(came[name].shape)} for {name!r}")
        if spec.dtype != came[name].dtype:
            raise ProtocolError(f"expected dtype {spec.dtype}, got {came[name].dtype} for {name!r}")
    if set(content.scalars) - set(declaration.scalars):
        raise ProtocolError(f"expected at most scalars {list(declaration.scalars)}, got {sorted(content.scalars)}")
    _check_finite([name for name, spec in declared.items() if spec.dtype == "F32"], content.arrays, content.scalars)


def _check_finite(names: Iterable[str], arrays: Arrays, scalars: Scalars) -> None:
    for name, value in scalars.items():
        if not math.isfinite(value):
            raise ProtocolError(f"expected a finite number, got {value} for {name!r}")
    for name in names:
        if not np.isfinite(arrays[name]).all():
            raise ProtocolError(f"expected finite values, got NaN or infinity in {name!r}")


def require_canonical(path: str | Path, declaration: Declaration, scalars: Scalars) -> None:
    """Raises ProtocolError unless a stored body is as `encode_body` writes it.

    To the byte, except for its tensors' values. A reader of safetensors ignores fields, repetitions and spaces in a
    header that could carry data.
    """
    forms = {spec.name: spec.form for spec in declaration.uploaded}
    if not is_body_of(path, body_head(forms, scalars), body_size(forms, scalars)):
        raise ProtocolError("expected an update in the canonical form that a client writes, got another form")


def find_scalars(path: str | Path, declaration: Declaration) -> Scalars | None:
    """Reads the scalars of a stored body that is a declared update to the byte.

    None for any other, of which `require_content` and `require_canonical` say what is wrong. This reads the file once,
    and of its values never more than a megabyte.
    """
    forms = {spec.name: spec.form for spec in declaration.uploaded}
    with open(path, "rb", buffering=0) as file:
        if (found := SCALARS_FIELD.match(file.read(LONGEST_SCALARS))) is None:
            return None
        try:
            scalars = _scalars({"scalars": json.loads(b'"%b"' % found[1])})
            head = body_head(forms, scalars)
        except (ProtocolError, ValueError):  # a number that is not finite is not written
            return None
        size = len(head) + sum(form.bytes for form in forms.values())
        if not set(declaration.scalars).issuperset(scalars) or os.fstat(file.fileno()).st_size != size:
            return None
        file.seek(0)
        return scalars if file.read(len(head)) == head and _has_finite_floats(file, forms.values()) else None


def _has_finite_floats(file: FileIO, forms: Collection[Form]) -> bool:
    """Tells whether all floats of a body are finite, whose file is at its values."""
    file.seek(sum(form.bytes for form in forms if ORDER.index(form.dtype) < ORDER.index("F32")), os.SEEK_CUR)
    left = sum(form.bytes for form in forms if form.dtype == "F32")
    while left:
        piece = file.read(min(left, PIECE_BYTES))
        if not piece or not np.isfinite(np.frombuffer(piece, STORED["F32"])).all():
            return False
        left -= len(piece)
    return True


def decode_body(body: bytes) -> tuple[tuple[TensorSpec, ...], Parameters]:
    """Decodes a body in memory; returns its specification and content.

    Raises ProtocolError if it is malformed.
    """
    try:
        arrays = load(body)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ProtocolError(f"expected a safetensors body, got: {error}") from None
    if wrong := sorted(name for name, value in arrays.items() if value.dtype not in (np.float32, np.uint32)):
        raise ProtocolError(f"expected dtype {' or '.join(DTYPES)} everywhere, got another for {wrong}")
    specification = tuple(_claimed(name, *memory_form(arrays[name])) for name in sorted(arrays))
    return specification, Parameters(arrays, _scalars(read_metadata(body)))


PIECE = 1 << 18  # values; a megabyte
PIECE_BYTES = 4 * PIECE
LENGTH_BYTES = 8  # before the header: its length, little-endian
ALIGNED = 8  # bytes; spaces fill the header up to a multiple of it
ORDER = tuple(STORED)
LONGEST_SCALARS = 4 << 10  # bytes in which a body's scalars end, as a client writes it
METADATA = re.compile(rb'\{"__metadata__":(\{"\w+":"(?:[^"\\]|\\.)*+"\}),?')
SCALARS_FIELD = re.compile(rb'(?s:.{8})\{"__metadata__":\{"scalars":"((?:[^"\\]|\\.)*+)"')


def scalars_text(scalars: Scalars) -> str:
    """Writes scalars as exact decimal JSON, by name; raises ValueError if not finite."""
    return json.dumps({name: float(value) for name, value in sorted(scalars.items())}, allow_nan=False)


def body_head(forms: Mapping[str, Form], scalars: Scalars) -> bytes:
    """Writes the bytes of a body before its values: the header with its length."""
    return body_head_with(forms, {"scalars": scalars_text(scalars)})


def body_head_with(forms: Mapping[str, Form], metadata: Mapping[str, str]) -> bytes:
    """Writes the bytes of a body before its values, with any metadata."""
    entries = _tensor_entries(tuple(forms.items()))
    text = f'{{"__metadata__":{_compact_json(dict(metadata))}{entries}}}'.encode()
    text += b" " * (-len(text) % ALIGNED)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


@lru_cache(maxsize=8)  # all bodies of a round have the same tensors
def _tensor_entries(forms: tuple[tuple[str, Form], ...]) -> str:
    """Writes the tensors' entries of a header, each behind a comma."""
    found, begin, named = [], 0, dict(forms)
    for name in names_in_order(named):
        end = begin + named[name].bytes
        entry = {"dtype": named[name].dtype, "shape": list(named[name].shape), "data_offsets": [begin, end]}
        found.append(f",{_compact_json(name)}:{_compact_json(entry)}")
        begin = end
    return "".join(found)


def _compact_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def names_in_order(forms: Mapping[str, Form]) -> list[str]:
    """Lists the tensors' names in the order of a body: by type, then by name."""
    return sorted(forms, key=lambda name: (ORDER.index(forms[name].dtype), name))


def require_short_head(start: bytes, longest: int) -> None:
    """Raises ProtocolError for a body that announces a longer header than allowed.

    A reader of safetensors parses a header of any length in memory: a million tensors without values are a few
    megabytes to send and a gigabyte to parse.
    """
    announced = int.from_bytes(start[:LENGTH_BYTES], "little")
    if len(start) < LENGTH_BYTES or announced > longest:
        raise ProtocolError(f"expected a safetensors body with a head of at most {longest} bytes, got {announced}")


def read_metadata(body: bytes) -> Mapping[str, str]:
    """Returns the metadata in the header of a body that has been decoded."""
    length = int.from_bytes(body[:LENGTH_BYTES], "little")
    return json.loads(body[LENGTH_BYTES : LENGTH_BYTES + length]).get("__metadata__") or {}


def tensor_names(body: bytes) -> frozenset[str]:
    """Returns the names of a body's tensors by its header; raises ProtocolError for none."""
    length = int.from_bytes(body[:LENGTH_BYTES], "little")
    try:
        header = json.loads(body[LENGTH_BYTES : LENGTH_BYTES + length])
    except (ValueError, RecursionError):
        raise ProtocolError("expected a safetensors body, got other content") from None
    if not isinstance(header, dict):
        raise ProtocolError("expected a safetensors body, got other content")
    return frozenset(header) - {"__metadata__"}


def is_body_of(path: str | Path, front: bytes, size: int) -> bool:
    """Tells whether a stored body begins with these bytes and has this size."""
    with open(path, "rb") as file:
        return file.read(len(front)) == front and os.stat(path).st_size == size


def body_size(forms: Mapping[str, Form], scalars: Scalars) -> int:
    """Returns the bytes of the whole body."""
    return len(body_head(forms, scalars)) + sum(form.bytes for form in forms.values())


def body_pieces(parameters: Parameters) -> Iterator[bytes]:
    """Yields the body in pieces of at most a megabyte, also of arrays on disk."""
    forms = {name: array_form(parameters.arrays, name) for name in parameters.arrays}
    yield body_head(forms, parameters.scalars)
    for name in names_in_order(forms):
        spans = ((begin, min(begin + PIECE, forms[name].size)) for begin in range(0, forms[name].size, PIECE))
        yield from (stored.tobytes() for stored in stored_parts(parameters.arrays, name, spans))


class StoredPlace(NamedTuple):
    """Position of an array in a stored body: byte of the file, and form."""

    begin: int
    form: Form

    def part(self, begin: int, end: int) -> StoredPlace:
        """Returns the position of some of its values, in row order."""
        dtype, numbers = self.form.dtype, range(self.form.size)[begin:end]
        return StoredPlace(self.begin + Form(dtype, (begin,)).bytes, Form(dtype, (len(numbers),)))


class BodyPlaces(dict[str, StoredPlace]):
    """Position of each array of a body, from the first byte of its values."""

    _asked: tuple[Spans, list[tuple[int, int]]] = (), []

    def ranges(self, spans: Spans) -> list[tuple[int, int]]:
        """Returns begin and length in bytes of these values, neighbours as one."""
        asked = self._asked  # by the body before, of the same tensors
        if asked[0] is not spans:
            found: list[tuple[int, int]] = []
            for name, first, last in spans:
                (begin, form), before = self[name].part(first, last), found[-1] if found else (0, 0)
                if sum(before) == begin:
                    found[-1:] = [(before[0], before[1] + form.bytes)]
                else:
                    found.append((begin, form.bytes))
            asked = self._asked = spans, found
        return asked[1]


class BodyHeader(NamedTuple):
    """Header of a stored body; `start`: first byte of its values."""

    start: int
    places: BodyPlaces
    metadata: Mapping[str, str]


def array_places(path: str | Path) -> dict[str, StoredPlace]:
    """Returns the position of each array of a stored body."""
    start, places, _ = _read_header(path)
    return {name: StoredPlace(start + place.begin, place.form) for name, place in places.items()}


def _read_header(path: str | Path) -> BodyHeader:
    with open(path, "rb") as file:
        return _parse_header(file.read(int.from_bytes(file.read(LENGTH_BYTES), "little")))


def _parse_header(text: bytes) -> BodyHeader:
    """Reads each array's position, and the metadata, from a stored body's header."""
    found = METADATA.match(text)
    metadata = json.loads(found[1]) if found else json.loads(text).get("__metadata__") or {}
    return BodyHeader(LENGTH_BYTES + len(text), _parse_places(b"{" + text[found.end() :] if found else text), metadata)


@lru_cache(maxsize=4)
def _parse_places(entries: bytes) -> BodyPlaces:
    """Reads each array's position.

    Ten thousand updates of a round differ in their heads' scalars alone: each with positions of its own, they would
    take more memory than a model.
    """
    found: dict[str, Any] = json.loads(entries)
    found.pop("__metadata__", None)
    return BodyPlaces(
        {
            name: StoredPlace(entry["data_offsets"][0], Form(entry["dtype"], tuple(entry["shape"])))
            for name, entry in found.items()
        }
    )


def read_array(path: str | Path, place: StoredPlace) -> Array:
    """Reads one array of a stored body; raises ProtocolError if the file is too short.

    Not mapped: a failing disk then raises an error instead of killing the process.
    """
    begin, (dtype, shape) = place
    if begin + place.form.bytes > os.stat(path).st_size:
        raise ProtocolError(f"expected {place.form.size} values from byte {begin} on, got a file that ends before")
    return np.fromfile(path, dtype=STORED[dtype], count=place.form.size, offset=begin).reshape(shape)
