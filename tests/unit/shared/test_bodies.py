"""A body piece by piece is to the byte the body that safetensors writes, and its arrays are read one at a time."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from shared.errors import ProtocolError
from shared.method.parameters import Array, Arrays, Form, Parameters, Scalars, memory_form
from shared.protocol.wire import (
    PIECE,
    StoredPlace,
    array_places,
    body_head,
    body_pieces,
    body_size,
    encode_body,
    open_parameters,
    read_array,
)

NAMES = st.from_regex(r"[a-z0-9_.]{1,12}(/[a-z0-9_.]{1,8})?", fullmatch=True)
SHAPES = array_shapes(max_dims=3, max_side=5)
VALUES = arrays(np.float32, SHAPES, elements=st.floats(width=32, allow_nan=False)) | arrays(np.uint32, SHAPES)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(NAMES, VALUES, max_size=5), st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False))
)
def test_the_pieces_together_are_what_safetensors_writes(found: Arrays, scalars: Scalars) -> None:
    whole = encode_body(Parameters(found, scalars))
    assert b"".join(body_pieces(Parameters(found, scalars))) == whole
    forms = {name: memory_form(value) for name, value in found.items()}
    assert whole.startswith(body_head(forms, scalars)) and body_size(forms, scalars) == len(whole)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "body"
        path.write_bytes(whole)
        again = {name: read_array(path, place) for name, place in array_places(path).items()}
    assert again.keys() == found.keys()
    assert all(np.array_equal(again[n], found[n]) and again[n].dtype == found[n].dtype for n in found)


@pytest.mark.parametrize("dtype", [np.float32, np.uint32])
def test_no_piece_is_long_and_a_lazy_body_is_told_like_any_other(tmp_path: Path, dtype: type[np.generic]) -> None:
    value = np.arange(2 * PIECE + 1).astype(dtype)
    parts = list(body_pieces(Parameters({"long": value}, {"rho": 0.5})))
    assert [len(part) for part in parts[1:]] == [4 * PIECE, 4 * PIECE, 4]
    (tmp_path / "body").write_bytes(b"".join(parts))
    assert list(body_pieces(open_parameters(tmp_path / "body")[1])) == parts


@pytest.mark.parametrize(
    ("strange", "dtype"),
    [
        (np.ones((3, 2), dtype=np.float32).T, np.float32),
        (np.ones((2, 3)), np.float32),
        (np.ones((2, 3), dtype=">f4"), np.float32),
        (np.ones((3, 2), dtype=np.uint32).T, np.uint32),
        (np.ones((2, 3), dtype=">u4"), np.uint32),
    ],
)
def test_the_order_and_the_type_of_an_array_in_memory_do_not_show(strange: Array, dtype: type[np.generic]) -> None:
    plain = Parameters({"a": np.ones((2, 3), dtype=dtype)})
    assert b"".join(body_pieces(Parameters({"a": strange}))) == b"".join(body_pieces(plain)) == encode_body(plain)


def test_a_file_that_ends_too_early_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(bytes(40))
    with pytest.raises(ProtocolError, match="expected 8 values from byte 12 on, got a file that ends before"):
        read_array(tmp_path / "body", StoredPlace(12, Form("F32", (2, 4))))
