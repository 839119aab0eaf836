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
from shared.method.exchanged import Parameters, Scalars
from shared.method.parameters import Arrays, Form, form_of
from shared.protocol.bodies import PIECE, StoredPlace, body_size, head, pieces, places, read_array
from shared.protocol.wire import encode, open_parameters

NAMES = st.from_regex(r"[a-z0-9_.]{1,12}(/[a-z0-9_.]{1,8})?", fullmatch=True)
VALUES = arrays(np.float32, array_shapes(max_dims=3, max_side=5), elements=st.floats(width=32, allow_nan=False))


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(NAMES, VALUES, max_size=5), st.dictionaries(NAMES, st.floats(allow_nan=False, allow_infinity=False))
)
def test_the_pieces_together_are_what_safetensors_writes(found: Arrays, scalars: Scalars) -> None:
    whole = encode(Parameters(found, scalars))
    assert b"".join(pieces(Parameters(found, scalars))) == whole
    forms = {name: form_of(value) for name, value in found.items()}
    assert whole.startswith(head(forms, scalars)) and body_size(forms, scalars) == len(whole)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "body"
        path.write_bytes(whole)
        again = {name: read_array(path, place) for name, place in places(path).items()}
    assert again.keys() == found.keys() and all(np.array_equal(again[name], found[name]) for name in found)


def test_no_piece_is_long_and_a_lazy_body_is_told_like_any_other(tmp_path: Path) -> None:
    value = np.arange(2 * PIECE + 1, dtype=np.float32)
    parts = list(pieces(Parameters({"long": value}, {"rho": 0.5})))
    assert [len(part) for part in parts[1:]] == [4 * PIECE, 4 * PIECE, 4]
    (tmp_path / "body").write_bytes(b"".join(parts))
    assert list(pieces(open_parameters(tmp_path / "body")[1])) == parts


@pytest.mark.parametrize(
    "strange", [np.ones((3, 2), dtype=np.float32).T, np.ones((2, 3)), np.ones((2, 3), dtype=">f4")]
)
def test_the_order_and_the_type_of_an_array_in_memory_do_not_show(strange: np.ndarray) -> None:  # type: ignore[type-arg]
    plain = Parameters({"a": np.ones((2, 3), dtype=np.float32)})
    assert b"".join(pieces(Parameters({"a": strange}))) == b"".join(pieces(plain)) == encode(plain)


def test_a_file_that_ends_too_early_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(bytes(40))
    with pytest.raises(ProtocolError, match="expected 8 values from byte 12 on, got a file that ends before"):
        read_array(tmp_path / "body", StoredPlace(12, Form("F32", (2, 4))))
