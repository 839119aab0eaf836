"""Bodies on the wire: what goes in comes out to the bit, and whatever else arrives is a ProtocolError."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors.numpy import save

from shared.errors import ProtocolError
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import Parameters, memory_form
from shared.protocol.wire import (
    StoredArrays,
    decode_body,
    encode_body,
    open_parameters,
    require_canonical,
    require_content,
)

SHAPES = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
Opened = tuple[tuple[TensorSpec, ...], Parameters]
CONTENT = Parameters(
    {"b": np.array([1.5, -2.0], dtype=np.float32), "a": np.array([[0.1], [1e-38], [3.0]], dtype=np.float32)},
    {"rho": 0.1, "margin": 1e-300},
)
DECLARATION = Declaration(
    strategy="s", tensors=(TensorSpec(name="a", shape=(3, 1)), TensorSpec(name="b", shape=(2,))), scalars=("rho",)
)


@pytest.fixture(params=["file", "memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[bytes], Opened]:
    """Both ways to read a body: lazily from a spooled file, and from memory."""

    def from_file(body: bytes) -> Opened:
        (tmp_path / "body").write_bytes(body)
        return open_parameters(tmp_path / "body")

    return from_file if request.param == "file" else decode_body


def raw(header: Any, data: bytes = b"") -> bytes:
    """A safetensors body by its definition: the header's length in 8 bytes, the header as JSON, the data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def one(dtype: str, shape: list[int], size: int, end: int | None = None) -> bytes:
    return raw({"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, size if end is None else end]}}, bytes(size))


def test_what_was_encoded_comes_back_to_the_bit(opened: Callable[[bytes], Opened]) -> None:
    specification, content = opened(encode_body(CONTENT))
    assert [(spec.name, spec.dtype, spec.shape) for spec in specification] == [("a", "F32", (3, 1)), ("b", "F32", (2,))]
    assert dict(content.scalars) == {"rho": 0.1, "margin": 1e-300}
    assert set(content.arrays) == {"a", "b"} and len(content.arrays) == 2
    for name in ("a", "b"):
        assert content.arrays[name].tobytes() == CONTENT.arrays[name].tobytes()
        assert content.arrays[name].dtype == np.float32 and content.arrays[name].shape == CONTENT.arrays[name].shape


@pytest.mark.parametrize(
    "header", [{}, {"__metadata__": {}}, {"__metadata__": None}, {"__metadata__": {"scalars": "{}"}}]
)
def test_scalars_may_be_missing(opened: Callable[[bytes], Opened], header: dict[str, Any]) -> None:
    assert dict(opened(raw(header))[1].scalars) == {}


def test_the_same_content_gives_the_same_body_whatever_its_order() -> None:
    turned = Parameters(dict(reversed(CONTENT.arrays.items())), dict(reversed(CONTENT.scalars.items())))
    assert encode_body(turned) == encode_body(CONTENT)


@given(
    tensors=st.dictionaries(
        st.text("abc._0", min_size=1, max_size=8),
        SHAPES.flatmap(lambda shape: arrays(np.float32, shape) | arrays(np.uint32, shape)),
        max_size=4,
    ),
    scalars=st.dictionaries(st.text(max_size=6), st.floats(allow_nan=False, allow_infinity=False), max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_any_float32_or_uint32_arrays_and_finite_scalars_survive(
    tensors: dict[str, np.ndarray], scalars: dict[str, float]
) -> None:
    body = encode_body(Parameters(tensors, scalars))
    with tempfile.NamedTemporaryFile() as file:
        file.write(body)
        file.flush()
        for specification, content in (open_parameters(Path(file.name)), decode_body(body)):
            assert {spec.name: spec.form for spec in specification} == {n: memory_form(v) for n, v in tensors.items()}
            assert dict(content.scalars) == scalars
            for name, value in tensors.items():
                assert content.arrays[name].dtype == value.dtype and content.arrays[name].tobytes() == value.tobytes()


def test_a_file_is_read_only_when_an_array_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(encode_body(CONTENT))
    content = open_parameters(path)[1]
    assert isinstance(content.arrays, StoredArrays)
    later = Parameters({"a": np.full((3, 1), 7.0, dtype=np.float32), "b": CONTENT.arrays["b"]}, CONTENT.scalars)
    path.write_bytes(encode_body(later))
    assert content.arrays["a"].tolist() == [[7.0]] * 3
    path.unlink()
    with pytest.raises(FileNotFoundError):
        content.arrays["a"]


@pytest.mark.parametrize("scalars", [{"rho": float("nan")}, {"rho": float("inf")}], ids=["not a number", "infinite"])
def test_a_scalar_that_is_not_finite_is_never_encoded(scalars: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode_body(Parameters({}, scalars))


MALFORMED = {
    "empty": b"",
    "a few bytes": b"abc",
    "text": b"<html>not found</html>",
    "cut off": encode_body(CONTENT)[:-1],
    "longer than it says": encode_body(CONTENT) + b"\0",
    "a header beyond the body": struct.pack("<Q", 1 << 40),
    "a header that is no JSON": raw(b"{nope"),
    "a header that is a list": raw([]),
    "a pickle": b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00\x8c\x02os.",
    "overlapping tensors": raw(
        {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in ("x", "y")}, bytes(4)
    ),
    "a size that overflows": one("F32", [1 << 62, 1 << 62], 4),
    "fewer bytes than the shape takes": one("F32", [3], 8),
    "offsets beyond the end": one("F32", [2], 4, end=8),
    "scalars that are a number": raw({"__metadata__": {"scalars": 1}}),
    "scalars that are no JSON": raw({"__metadata__": {"scalars": "{"}}),
    "scalars nested without end": raw({"__metadata__": {"scalars": "[" * 100_000}}),
    "scalars in a list": raw({"__metadata__": {"scalars": "[1.0]"}}),
    "a scalar without a fraction": raw({"__metadata__": {"scalars": '{"rho": 1}'}}),
    "a scalar of a million digits": raw({"__metadata__": {"scalars": '{"rho": ' + "1" * 1_000_000 + "}"}}),
    "a scalar that is true": raw({"__metadata__": {"scalars": '{"rho": true}'}}),
    "a scalar that is text": raw({"__metadata__": {"scalars": '{"rho": "0.1"}'}}),
    "a nested scalar": raw({"__metadata__": {"scalars": '{"rho": {"a": 0.1}}'}}),
    "another metadata field": raw({"__metadata__": {"scalars": "{}", "note": "from me"}}),
    "another metadata field alone": raw({"__metadata__": {"format": "pt"}}),
}


@pytest.mark.parametrize("body", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_body_is_refused(opened: Callable[[bytes], Opened], body: bytes) -> None:
    with pytest.raises(ProtocolError, match="expected"):
        opened(body)


@pytest.mark.parametrize(
    ("dtype", "size"), [("F64", 8), ("F16", 2), ("BF16", 2), ("I64", 8), ("I32", 4), ("U64", 8), ("U8", 1), ("BOOL", 1)]
)
def test_another_type_than_float32_and_uint32_is_refused(
    opened: Callable[[bytes], Opened], dtype: str, size: int
) -> None:
    with pytest.raises(ProtocolError):
        opened(one(dtype, [1], size))


def test_one_foreign_tensor_among_float32_is_refused(opened: Callable[[bytes], Opened]) -> None:
    with pytest.raises(ProtocolError, match="'y'"):
        opened(save({"x": np.zeros(2, dtype=np.float32), "y": np.zeros(2)}, metadata={"scalars": "{}"}))


def checked(opened: Callable[[bytes], Opened], arrays: dict[str, Any], scalars: dict[str, float]) -> None:
    values = {name: np.array(value, dtype=np.float32) for name, value in arrays.items()}
    require_content(DECLARATION, *opened(encode_body(Parameters(values, scalars))))


A, B = [[1.0], [2.0], [3.0]], [4.0, 5.0]


def test_what_was_declared_passes_with_its_scalars_or_without(opened: Callable[[bytes], Opened]) -> None:
    checked(opened, {"a": A, "b": B}, {"rho": 0.1})
    checked(opened, {"a": A, "b": B}, {})


@pytest.mark.parametrize(
    ("arrays", "scalars", "words"),
    [
        ({"a": A}, {}, r"\['a', 'b'\], got \['a'\]"),
        ({"a": A, "b": B, "c": B}, {}, r"got \['a', 'b', 'c'\]"),
        ({"a": A, "c": B}, {}, r"got \['a', 'c'\]"),
        ({"a": [1.0, 2.0, 3.0], "b": B}, {}, r"expected shape \[3, 1\], got \[3\] for 'a'"),
        ({"a": A, "b": [4.0]}, {}, r"expected shape \[2\], got \[1\] for 'b'"),
        ({"a": A, "b": B}, {"margin": 0.1}, r"expected at most scalars \['rho'\], got \['margin'\]"),
        ({"a": A, "b": [4.0, float("nan")]}, {}, "'b'"),
        ({"a": [[float("-inf")], [2.0], [3.0]], "b": B}, {}, "'a'"),
    ],
    ids=["missing", "extra", "misnamed", "flat", "short", "extra scalar", "not a number", "infinite"],
)
def test_content_that_differs_from_its_declaration_is_refused_in_words(
    opened: Callable[[bytes], Opened], arrays: dict[str, Any], scalars: dict[str, float], words: str
) -> None:
    with pytest.raises(ProtocolError, match=words):
        checked(opened, arrays, scalars)


NOT_A_NUMBER = np.array([np.nan, np.inf], dtype=np.float32)
SUMMED = DECLARATION.model_copy(
    update={"tensors": (TensorSpec(name="a", shape=(3, 1)), TensorSpec(name="b", dtype="U32", shape=(2,)))}
)


def test_integers_are_taken_whatever_their_bytes_are(opened: Callable[[bytes], Opened], tmp_path: Path) -> None:
    content = Parameters({"a": np.ones((3, 1), dtype=np.float32), "b": NOT_A_NUMBER.view(np.uint32)})
    require_content(SUMMED, *opened(encode_body(content)))
    (tmp_path / "update").write_bytes(encode_body(content))
    require_canonical(tmp_path / "update", SUMMED, {})
    with pytest.raises(ProtocolError, match="canonical form"):
        require_canonical(tmp_path / "update", DECLARATION, {})


@pytest.mark.parametrize(
    ("declaration", "dtype", "words"),
    [
        (SUMMED, np.float32, "expected dtype U32, got F32 for 'b'"),
        (DECLARATION, np.uint32, "expected dtype F32, got U32"),
    ],
)
def test_the_other_type_is_refused(
    opened: Callable[[bytes], Opened], declaration: Declaration, dtype: type[np.generic], words: str
) -> None:
    content = Parameters({"a": np.ones((3, 1), dtype=np.float32), "b": np.ones(2).astype(dtype)})
    with pytest.raises(ProtocolError, match=words):
        require_content(declaration, *opened(encode_body(content)))


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999"])
def test_a_scalar_that_is_not_finite_is_refused(opened: Callable[[bytes], Opened], text: str) -> None:
    declaration = Declaration(strategy="s", tensors=(), scalars=("rho",))
    with pytest.raises(ProtocolError, match="'rho'"):
        require_content(declaration, *opened(raw({"__metadata__": {"scalars": f'{{"rho": {text}}}'}})))


def respelt(change: Callable[[str], str], more: bytes = b"") -> bytes:
    """The same tensors and scalars, as far as a reader of safetensors sees, in another spelling."""
    body = encode_body(Parameters(CONTENT.arrays, {"rho": 0.1}))
    length = int.from_bytes(body[:8], "little")
    return raw(change(body[8 : 8 + length].decode()).encode(), body[8 + length :] + more)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"dtype":"F32"', '"user-00006":"1,2,3","dtype":"F32"', 1),
        lambda text: text.replace('"dtype":"F32"', '"dtype":"F32","dtype":"F32"', 1),
        lambda text: text.replace('{"__metadata__":', '{"__metadata__":{"scalars":"user-00006"},"__metadata__":', 1),
        lambda text: text + " " * 800,
        lambda text: text.replace("0.1", "0.10", 1),
        lambda text: text.replace("0.1", "1e-1", 1),
    ],
)
def test_another_spelling_of_the_same_content_is_refused(change: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "body"
    path.write_bytes(respelt(lambda text: text))
    require_canonical(path, DECLARATION, {"rho": 0.1})
    path.write_bytes(respelt(change))
    with pytest.raises(ProtocolError):  # some spellings the reader itself refuses
        specification, content = open_parameters(path)
        require_content(DECLARATION, specification, content)
        require_canonical(path, DECLARATION, content.scalars)
