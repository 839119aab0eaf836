"""Declarations are written as ever where all is float32, and are told apart field by field."""

from __future__ import annotations

import pytest

from shared.method.declaration import Declaration, TensorSpec, describe_difference

WEIGHT, COUNTS = TensorSpec(name="w", shape=(2, 3)), TensorSpec(name="n", dtype="U32", shape=(4,))


def declared(*tensors: TensorSpec) -> Declaration:
    return Declaration(strategy="fedavg", tensors=tensors, scalars=())


def test_a_declaration_of_float32_is_written_as_by_earlier_versions() -> None:
    written = '{"strategy":"fedavg","tensors":[{"name":"w","dtype":"F32","shape":[2,3]}],"scalars":[],"secure":false}'
    assert declared(WEIGHT).model_dump_json() == written
    assert Declaration.model_validate_json(written) == declared(WEIGHT)


def test_one_with_integers_comes_back() -> None:
    assert Declaration.model_validate_json(declared(WEIGHT, COUNTS).model_dump_json()) == declared(WEIGHT, COUNTS)


def test_the_one_sum_of_an_earlier_version_is_read_as_that_of_the_part_basis() -> None:
    inner = '{"strategy":"common_basis","tensors":[{"name":"n","dtype":"U32","shape":[4]}],"scalars":[],"secure":true}'
    outer = '{"strategy":"fedavg","tensors":[{"name":"w","dtype":"F32","shape":[2,3]}],"scalars":[],"secure":true,'
    sums = Declaration(strategy="common_basis", tensors=(COUNTS,), scalars=(), secure=True)
    found = Declaration.model_validate_json(f'{outer}"basis":{inner}}}')
    assert found == Declaration(strategy="fedavg", tensors=(WEIGHT,), scalars=(), secure=True, sums={"basis": sums})
    assert found.of_part("basis") == sums and Declaration.model_validate_json(found.model_dump_json()) == found


def test_sums_are_told_apart_part_by_part() -> None:
    one, other = (Declaration(strategy=name, tensors=(COUNTS,), scalars=()) for name in ("common_basis", "items"))
    two = declared(WEIGHT).model_copy(update={"sums": {"basis": one, "items": other}})
    assert two.parts == (declared(WEIGHT), one, other)
    without = two.model_copy(update={"sums": {"basis": one}})
    assert describe_difference(two, without) == "items: expected a sum, got no sum"
    swapped = two.model_copy(update={"sums": {"basis": one, "items": one}})
    assert describe_difference(two, swapped) == "items: strategy: expected 'items', got 'common_basis'"


@pytest.mark.parametrize(
    ("expected", "observed", "words"),
    [
        ((WEIGHT, COUNTS), (COUNTS, WEIGHT), None),
        ((COUNTS,), (COUNTS.model_copy(update={"dtype": "F32"}),), "expected 'n' of type U32, got F32"),
        ((WEIGHT,), (WEIGHT.model_copy(update={"dtype": "U32"}),), "expected 'w' of type F32, got U32"),
        ((COUNTS,), (COUNTS.model_copy(update={"shape": (5,)}),), "expected 'n' of shape [4], got [5]"),
        ((WEIGHT,), (WEIGHT, COUNTS), "expected 'n' of shape none, got [4]"),
    ],
    ids=["order", "float", "integer", "shape", "one more"],
)
def test_the_first_tensor_that_differs_is_named(
    expected: tuple[TensorSpec, ...], observed: tuple[TensorSpec, ...], words: str | None
) -> None:
    found = describe_difference(declared(*expected), declared(*observed))
    assert found == (None if words is None else f"tensors: {words}")
