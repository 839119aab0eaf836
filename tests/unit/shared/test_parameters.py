"""The two shared MLPs: their names and shapes, a start that every machine draws alike, and a digest of values."""

from __future__ import annotations

import numpy as np
import pytest

from shared.errors import SettingsError
from shared.method.parameters import digest_arrays
from shared.method.settings import MethodSettings
from shared.method.tensors import Tensor, encoded_width, initial_parameters, kernel_specification, mlp_specification

SPECIFICATION = mlp_specification(MethodSettings(width=64, layers=2))


def test_both_mlps_have_a_weight_and_a_bias_for_each_of_their_two_layers() -> None:
    # Pooling: (2 + 1) 64 = 192 -> 64 -> 64. Predictive: 3 * 64 = 192 -> 64 -> 1.
    assert [(spec.name, spec.shape) for spec in SPECIFICATION] == [
        ("pooling.hidden.bias", (64,)),
        ("pooling.hidden.weight", (64, 192)),
        ("pooling.output.bias", (64,)),
        ("pooling.output.weight", (64, 64)),
        ("predictive.hidden.bias", (64,)),
        ("predictive.hidden.weight", (64, 192)),
        ("predictive.output.bias", (1,)),
        ("predictive.output.weight", (1, 64)),
    ]


@pytest.mark.parametrize(("width", "layers"), [(1, 1), (3, 4)])
def test_the_pooling_mlp_grows_with_the_number_of_layers(width: int, layers: int) -> None:
    shapes = {s.name: s.shape for s in mlp_specification(MethodSettings(width=width, layers=layers))}
    assert shapes["pooling.hidden.weight"] == (width, (layers + 1) * width)
    assert shapes["predictive.hidden.weight"] == (width, 3 * width)


def test_the_kernel_mlp_has_one_output_a_convolution_and_takes_an_encoded_eigenvalue() -> None:
    found = {spec.name.removeprefix("kernel."): spec.shape for spec in kernel_specification(MethodSettings(width=6))}
    # Itself, three sines and three cosines.
    assert found == {"hidden.bias": (6,), "hidden.weight": (6, 7), "output.bias": (2,), "output.weight": (2, 6)}
    assert [encoded_width(width) for width in (1, 2, 3, 4, 64)] == [3, 3, 3, 5, 65]


def test_the_same_seed_gives_the_same_start_and_another_seed_another() -> None:
    first, again, other = (digest_arrays(initial_parameters(SPECIFICATION, seed, exact=False)) for seed in (4, 4, 5))
    assert first == again != other


def test_weights_fill_the_xavier_interval_and_biases_are_zero() -> None:
    values = initial_parameters(SPECIFICATION, 1, exact=False)
    # sqrt(6 / (64 + 192)) for 12,288 draws: the largest lies within a hundredth of the limit.
    weight, limit = values["pooling.hidden.weight"], np.sqrt(6 / 256)
    assert 0.99 * limit < np.abs(weight).max() <= limit
    assert abs(weight.mean()) < 0.01 * limit * np.sqrt(3)  # the mean's deviation is limit / sqrt(3) / 111
    assert all(not value.any() for name, value in values.items() if name.endswith(".bias"))


def test_an_exact_start_zeroes_the_output_layers_and_nothing_else() -> None:
    exact, random = (initial_parameters(SPECIFICATION, 2, exact=exact) for exact in (True, False))
    for name in exact:
        if ".output." in name:
            assert not exact[name].any()
        else:
            np.testing.assert_array_equal(exact[name], random[name])
    assert random["pooling.output.weight"].any() and random["predictive.output.weight"].any()


def test_a_digest_does_not_depend_on_the_order_or_the_memory_layout() -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(2, dtype=np.float32)
    expected = digest_arrays({"a": a, "b": b})
    assert digest_arrays({"b": b, "a": np.asfortranarray(a)}) == expected
    assert digest_arrays({"b": b.astype(">f4"), "a": a}) == expected


@pytest.mark.parametrize(
    "other",
    [
        {"a": np.array([1.0, 2.0, 3.0, 5.0], dtype=np.float32)},
        {"b": np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)},
        {"a": np.array([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32)},
        {"a": np.array([1.0, 2.0], dtype=np.float32), "b": np.array([3.0, 4.0], dtype=np.float32)},
        {},
    ],
    ids=["value", "name", "shape", "split", "nothing"],
)
def test_a_digest_changes_with_a_value_a_name_and_a_shape(other: dict[str, np.ndarray]) -> None:
    assert digest_arrays(other) != digest_arrays({"a": np.array([1.0, 2.0, 3.0, 4.0], dtype=np.float32)})


def test_a_digest_of_float32_is_the_one_that_earlier_versions_computed() -> None:
    given = {
        "a": np.array(1.5, dtype=np.float32),
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "c": np.zeros((0, 4), dtype=np.float32),
    }
    assert digest_arrays(given) == "d9b9e7c17d00215cef9ddf0213c5e7ae09b8ea205ee5ca298eeefc29bb4c5977"


def test_a_digest_of_integers_is_of_their_own_type() -> None:
    zeros, counts = np.zeros(4, dtype=np.uint32), np.array([0, 1, 2**24, 2**24 + 1], dtype=np.uint32)
    assert digest_arrays({"a": zeros}) != digest_arrays({"a": zeros.astype(np.float32)})
    assert digest_arrays({"a": counts}) != digest_arrays({"a": counts.astype(np.float32).astype(np.uint32)})
    assert digest_arrays({"a": counts}) == digest_arrays({"a": counts.astype(">u4")}) != digest_arrays({"a": zeros})


def test_a_single_number_is_not_a_row_of_one() -> None:
    assert digest_arrays({"a": np.array(1.0, dtype=np.float32)}) != digest_arrays(
        {"a": np.array([1.0], dtype=np.float32)}
    )


def test_a_tensor_without_entries_is_drawn_without_complaint() -> None:
    assert initial_parameters((Tensor("x", (0,)),), 0, exact=True)["x"].shape == (0,)


def test_a_sum_of_integers_begins_with_zeros_and_draws_nothing() -> None:
    pairs = Tensor("pairs", (3, 2), "zeros", dtype="U32")
    assert pairs.spec.model_dump() == {"name": "pairs", "dtype": "U32", "shape": (3, 2)}
    values = initial_parameters((pairs, *SPECIFICATION), 4, exact=False)
    assert values["pairs"].dtype == np.uint32 and not values["pairs"].any()
    del values["pairs"]
    assert digest_arrays(values) == digest_arrays(initial_parameters(SPECIFICATION, 4, exact=False))
    with pytest.raises(SettingsError, match=r"start of 'pairs': expected zeros for a sum of integers, got 'xavier'"):
        initial_parameters((pairs._replace(start="xavier"),), 0, exact=False)
