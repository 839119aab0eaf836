"""The gate passes exactly what was declared; for anything else it raises, and no byte comes out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import shared.protocol.gate
from shared.errors import PrivacyError
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import Float32, Parameters
from shared.protocol.gate import pass_gate
from shared.protocol.wire import encode_body

DECLARATION = Declaration(
    strategy="s",
    tensors=(TensorSpec(name="b", shape=(2,)), TensorSpec(name="w", shape=(1, 2))),
    scalars=("margin", "rho"),
)
W, B = np.array([[1.0, 2.0]], dtype=np.float32), np.array([3.0, 4.0], dtype=np.float32)


def test_exactly_the_declared_update_leaves_byte_for_byte() -> None:
    update = Parameters({"w": W, "b": B}, {"margin": 0.5, "rho": 0.25})
    assert pass_gate(DECLARATION, update) == encode_body(update)


@pytest.mark.parametrize("scalars", [{}, {"margin": 0.5}, {"rho": 0.0}])
def test_a_declared_scalar_may_stay_at_home(scalars: dict[str, float]) -> None:
    update = Parameters({"w": W, "b": B}, scalars)
    assert pass_gate(DECLARATION, update) == encode_body(update)


def test_a_declaration_of_nothing_lets_nothing_through() -> None:
    nothing = Declaration(strategy="local", tensors=(), scalars=())
    assert pass_gate(nothing, Parameters({})) == encode_body(Parameters({}))
    with pytest.raises(PrivacyError):
        pass_gate(nothing, Parameters({"b": B}))
    with pytest.raises(PrivacyError):
        pass_gate(nothing, Parameters({}, {"rho": 0.1}))


def changed(**arrays: Any) -> dict[str, Any]:
    return {"w": W, "b": B} | arrays


REFUSED: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "an extra tensor": (changed(embedding=B), {}),
    "a missing tensor": ({"w": W}, {}),
    "a misnamed tensor": ({"w": W, "B": B}, {}),
    "no tensor": ({}, {}),
    "another shape of as many numbers": (changed(w=W.T), {}),
    "a longer tensor": (changed(b=np.zeros(3, dtype=np.float32)), {}),
    "an extra dimension": (changed(b=B[None]), {}),
    "float64": (changed(b=B.astype(np.float64)), {}),
    "float16": (changed(b=B.astype(np.float16)), {}),
    "another byte order": (changed(b=B.astype(">f4")), {}),
    "integers": (changed(b=np.array([3, 4])), {}),
    "integers of as many bytes": (changed(b=B.view(np.uint32)), {}),
    "a list": (changed(b=[3.0, 4.0]), {}),
    "text": (changed(b=np.array(["3", "4"])), {}),
    "not a number": (changed(b=np.array([3.0, np.nan], dtype=np.float32)), {}),
    "infinity": (changed(w=np.array([[np.inf, 0.0]], dtype=np.float32)), {}),
    "an extra scalar": (changed(), {"rho": 0.1, "users": 5.0}),
    "a scalar that is not a number": (changed(), {"rho": float("nan")}),
    "an infinite scalar": (changed(), {"margin": float("-inf")}),
    "an integer scalar": (changed(), {"rho": 1}),
    "a boolean scalar": (changed(), {"rho": True}),
    "text as a scalar": (changed(), {"rho": "alice"}),
    "a list as a scalar": (changed(), {"rho": [0.1, 0.2]}),
    "nothing as a scalar": (changed(), {"rho": None}),
}


@pytest.mark.parametrize(("arrays", "scalars"), REFUSED.values(), ids=REFUSED.keys())
def test_anything_else_is_refused_before_a_byte_is_made(
    arrays: Mapping[str, Any], scalars: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Parameters] = []
    monkeypatch.setattr(shared.protocol.gate, "encode_body", made.append)
    with pytest.raises(PrivacyError, match="expected"):
        pass_gate(DECLARATION, Parameters(arrays, scalars))
    assert made == []


SUMMED = Declaration(strategy="s", tensors=(TensorSpec(name="n", dtype="U32", shape=(2,)),), scalars=())
COUNTS = np.array([3, 2**32 - 1], dtype=np.uint32)  # the bytes of the second are those of a NaN


def test_declared_integers_leave_byte_for_byte() -> None:
    assert pass_gate(SUMMED, Parameters({"n": COUNTS})) == encode_body(Parameters({"n": COUNTS}))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64, np.uint64, np.uint16, ">u4"])
def test_other_numbers_in_place_of_declared_integers_are_refused(dtype: Any) -> None:
    with pytest.raises(PrivacyError, match=r"expected uint32 \(2,\)"):
        pass_gate(SUMMED, Parameters({"n": COUNTS.astype(dtype)}))


def test_a_refusal_does_not_quote_an_undeclared_name_or_any_value() -> None:
    for arrays, scalars in (({"w": W, "b": B, "user.alice": B}, {}), ({"w": W, "b": B}, {"alice": 0.123})):
        with pytest.raises(PrivacyError) as raised:
            pass_gate(DECLARATION, Parameters(arrays, scalars))
        assert "alice" not in str(raised.value) and "0.123" not in str(raised.value)


class Hiding(Mapping[str, Float32]):
    """Says that it has two arrays, and holds a third."""

    def __getitem__(self, name: str) -> Float32:
        return {"w": W, "b": B, "secret": B}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(("w", "b"))

    def __len__(self) -> int:
        return 2


def test_only_what_a_mapping_lists_can_leave() -> None:
    assert pass_gate(DECLARATION, Parameters(Hiding())) == encode_body(Parameters({"w": W, "b": B}))
