"""What is hidden is what was declared, in one order; what comes in is what its header says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shared.errors import FederationError, PrivacyError, ProtocolError
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import Form, Parameters
from shared.protocol.secure import vectors
from shared.protocol.secure.vectors import MaskStream, add_masks

DECLARATION = Declaration(
    strategy="lpsfed",
    tensors=(TensorSpec(name="z", shape=(2,)), TensorSpec(name="a", shape=(1, 2))),
    scalars=("margin", "rho"),
)
ARRAYS = {"a": np.array([[1.0, -2.0]], dtype=np.float32), "z": np.array([0.5, 0.25], dtype=np.float32)}
CONTENT = Parameters(ARRAYS, {"margin": 0.75, "rho": 0.5})


def test_pieces_are_the_tensors_by_name_and_then_the_hidden_scalars() -> None:
    assert list(vectors.vector_layout(DECLARATION).items()) == [
        ("a", Form("U64", (1, 2))),
        ("z", Form("U64", (2,))),
        ("#scalars", Form("U64", (1,))),
    ]
    assert list(vectors.vector_layout(DECLARATION.model_copy(update={"scalars": ("rho",)}))) == ["a", "z"]


def test_a_vector_holds_tensors_and_hidden_scalars_and_no_open_one() -> None:
    encoded = vectors.encode_vector(DECLARATION, CONTENT)
    assert {name: (value / 2**40).tolist() for name, value in encoded.items() if name != "a"} == {
        "z": [0.5, 0.25],
        "#scalars": [0.75],
    }
    assert encoded["a"].tolist() == [[2**40, 2**64 - 2**41]]


def test_the_mean_of_equal_vectors_is_that_very_content() -> None:
    encoded = vectors.encode_vector(DECLARATION, CONTENT)
    got = vectors.decode_mean(DECLARATION, ((name, value * np.uint64(3)) for name, value in encoded.items()), 3)
    assert dict(got.scalars) == {"margin": 0.75}
    for name, value in ARRAYS.items():
        assert got.arrays[name].dtype == np.float32
        np.testing.assert_array_equal(got.arrays[name], value)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (Parameters({"a": ARRAYS["a"]}, CONTENT.scalars), PrivacyError),
        (Parameters({**ARRAYS, "users": ARRAYS["z"]}, CONTENT.scalars), PrivacyError),
        (Parameters({**ARRAYS, "z": ARRAYS["z"].astype(np.float64)}, CONTENT.scalars), PrivacyError),
        (Parameters({**ARRAYS, "z": np.array([1, np.nan], np.float32)}, CONTENT.scalars), PrivacyError),
        (Parameters(ARRAYS, {**CONTENT.scalars, "recall": 0.5}), PrivacyError),
        (Parameters(ARRAYS, {"rho": 0.5}), PrivacyError),
        (Parameters({**ARRAYS, "z": np.array([1, 5000], np.float32)}, CONTENT.scalars), ProtocolError),
        (Parameters(ARRAYS, {"margin": 5000.0}), ProtocolError),
    ],
)
def test_undeclared_missing_or_too_large_content_is_refused(content: Parameters, error: type[FederationError]) -> None:
    with pytest.raises(error):
        vectors.encode_vector(DECLARATION, content)


def changed(name: str, make: Callable[[Any], Any]) -> dict[str, Any]:
    encoded: dict[str, Any] = vectors.encode_vector(DECLARATION, CONTENT)
    return {**encoded, name: make(encoded[name])}


@pytest.mark.parametrize(
    ("came", "words"),
    [
        ({"a": vectors.encode_vector(DECLARATION, CONTENT)["a"]}, "got 1 of other names"),
        (
            {**vectors.encode_vector(DECLARATION, CONTENT), "users": np.zeros(2, dtype=np.uint64)},
            "got 4 of other names",
        ),
        (changed("z", lambda value: value.astype(np.int64)), "int64"),
        (changed("z", lambda value: value[:1]), r"\[1\]"),
        (changed("z", lambda value: value + np.uint64(1)), "digest"),
    ],
)
def test_a_vector_of_other_names_types_shapes_or_digest_is_refused(came: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        vectors.require_declared_vector(
            DECLARATION, came, vectors.digest_vector(vectors.encode_vector(DECLARATION, CONTENT))
        )


def test_vectors_in_fixed_point_are_masked_as_by_earlier_versions() -> None:
    values = np.arange(200_000, dtype=np.uint64)
    given = {"b": values[:6].reshape(2, 3), "a": np.array(5, dtype=np.uint64), "d": values}
    assert vectors.digest_vector(given) == "33f1cb9fd5c4e497128b8d909ee00e40a66112cb10a4b92eccc067180e013e3d"
    streams = [MaskStream(bytes(range(32)), 1), MaskStream(bytes(32), -1)]
    masked = {name: add_masks(value, streams, piece=piece) for piece, (name, value) in enumerate(given.items())}
    assert vectors.digest_vector(masked) == "89289b79fc34c39621bfd79ba96541b327922585b0a714c505ae18896f0d2e68"


def test_the_digest_tells_names_shapes_and_values_apart() -> None:
    values = np.arange(4, dtype=np.uint64)
    one, *others = (
        {"a": values},
        {"b": values},
        {"a": values.reshape(2, 2)},
        {"a": values[::-1]},
    )
    assert vectors.digest_vector(one) == vectors.digest_vector({"a": values.astype(">u8")})
    assert len({vectors.digest_vector(v) for v in (one, *others)}) == 4
