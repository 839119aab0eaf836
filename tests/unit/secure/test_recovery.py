"""The mean that comes out is the survivors' plain mean, whoever drops out when, and in whatever order they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from shared.errors import UnavailableError
from shared.method.parameters import Arrays, Parameters
from shared.method.settings import MethodSettings
from shared.method.tensors import initial_parameters, mlp_specification
from shared.protocol.secure import fixed_point, server
from shared.protocol.secure.fixed_point import LIMIT, Ring

NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus")
HALF_ULP = 2.0**-24  # of float32, into which the mean is rounded at last, as in the open mode


def require_mean(got: Parameters, contents: list[Parameters]) -> None:
    """Hold every number against the exact mean, with the bound that is stated."""
    for name, value in got.arrays.items():
        rows = [content.arrays[name].reshape(-1).tolist() for content in contents]
        assert value.shape == contents[0].arrays[name].shape and value.dtype == np.float32
        for number, *originals in zip(value.reshape(-1).tolist(), *rows, strict=True):
            require_near(number, originals, rounding=HALF_ULP)
    for name in got.scalars:
        require_near(got.scalars[name], [content.scalars[name] for content in contents], rounding=0.0)


def require_near(got: float, originals: list[float], *, rounding: float) -> None:
    exact = sum(map(Fraction, originals)) / len(originals)
    size = float(abs(exact)) + 2.0**-40
    assert abs(Fraction(got) - exact) <= Fraction(fixed_point.error_bound(size) + rounding * size + 2.0**-149)


FLOATS, MARGINS = st.floats(-LIMIT, LIMIT, width=32), st.floats(0, 4)


@st.composite
def federations(draw: st.DrawFn) -> tuple[dict[str, Parameters], list[str], list[str]]:
    """Three to seven clients with tensors of any shape; who drops out after sharing, and in which order they come."""
    shapes = draw(st.lists(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), min_size=1, max_size=3))
    names = draw(st.permutations(NAMES[: draw(st.integers(3, 7))]))
    contents = {}
    for name in names:
        tensors = {f"w{n}": draw(arrays(np.float32, shape, elements=FLOATS)) for n, shape in enumerate(shapes)}
        contents[name] = Parameters(tensors, {"margin": draw(MARGINS)})
    spare = len(names) - max(3, 2 * len(names) // 3 + 1)
    return contents, draw(st.lists(st.sampled_from(names), max_size=spare, unique=True)), names


@given(federations())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_mean_is_the_survivors_mean_for_any_shapes_values_and_drop_outs(
    rehearsal: type, drawn: tuple[dict[str, Parameters], list[str], list[str]]
) -> None:
    contents, dropped, _ = drawn
    got = rehearsal(contents).play(after_keys=(), after_shares=dropped)
    require_mean(got, [content for name, content in contents.items() if name not in dropped])


@pytest.mark.parametrize(
    ("lost", "in_the_mean"),
    [
        ({}, NAMES),
        ({"before_keys": ("ada",)}, NAMES[1:]),
        ({"after_keys": ("bob",)}, ("ada", *NAMES[2:])),
        ({"after_shares": ("fay", "cyd")}, ("ada", "bob", "dan", "eve", "gus")),
        ({"after_masked": ("fay", "cyd")}, NAMES),
        ({"before_keys": ("ada",), "after_keys": ("bob",)}, NAMES[2:]),
        ({"before_keys": ("fay",), "after_shares": ("bob",)}, ("ada", "cyd", "dan", "eve", "gus")),
        ({"after_shares": ("dan",), "after_masked": ("eve",)}, ("ada", "bob", "cyd", "eve", "fay", "gus")),
    ],
    ids=str,
)
def test_a_client_may_drop_out_at_any_point(
    rehearsal: type,
    contents: Callable[..., dict[str, Parameters]],
    lost: dict[str, tuple[str, ...]],
    in_the_mean: tuple[str, ...],
) -> None:
    """Seven clients, of whom five must stay. Who has sent a vector counts, even if it is not heard of any more."""
    everybody = contents(7)
    got = rehearsal(everybody).play(**lost)
    require_mean(got, [everybody[name] for name in in_the_mean])


@pytest.mark.parametrize("phase", ["before_keys", "after_keys", "after_shares", "after_masked"])
def test_with_fewer_than_the_threshold_there_is_no_mean(
    rehearsal: type, contents: Callable[..., dict[str, Parameters]], phase: str
) -> None:
    with pytest.raises(UnavailableError, match="expected at least 5 clients, got 4"):
        rehearsal(contents(7)).play(**{phase: ("ada", "dan", "fay")})


def test_three_clients_are_enough_if_all_stay(rehearsal: type, contents: Callable[..., dict[str, Parameters]]) -> None:
    everybody = contents(3)
    require_mean(rehearsal(everybody).play(), list(everybody.values()))


def test_the_order_in_which_clients_come_does_not_matter(
    rehearsal: type, contents: Callable[..., dict[str, Parameters]]
) -> None:
    everybody = contents(6)
    orders = (everybody, dict(sorted(everybody.items(), reverse=True)))
    one, other = (rehearsal(order).play(after_shares=("cyd",)) for order in orders)
    assert one.scalars == other.scalars
    for name in one.arrays:
        np.testing.assert_array_equal(one.arrays[name], other.arrays[name])


def test_without_taking_the_leftover_masks_away_the_sum_is_not_the_sum(
    rehearsal: type, contents: Callable[..., dict[str, Parameters]], monkeypatch: pytest.MonkeyPatch
) -> None:
    everybody = contents(4)
    monkeypatch.setattr(server, "restore_masks", lambda _: ())
    with pytest.raises(AssertionError):
        require_mean(rehearsal(everybody).play(), list(everybody.values()))


def test_both_mlps_of_six_clients(rehearsal: type) -> None:
    """28,929 numbers a client, as many as the method's defaults exchange."""
    specification = mlp_specification(MethodSettings())
    clients = {
        name: Parameters(initial_parameters(specification, seed, exact=False), {"margin": 0.1 * seed})
        for seed, name in enumerate(NAMES[:6])
    }
    got = rehearsal(clients).play(after_shares=("eve",))
    assert sum(value.size for value in got.arrays.values()) == 28_929
    del clients["eve"]
    require_mean(got, list(clients.values()))


class Watched(Mapping[str, Ring]):
    """A vector as it lies on disk: notes what is read when."""

    def __init__(self, client: str, vector: Mapping[str, Ring], reads: list[tuple[str, str]]) -> None:
        self.client, self.vector, self.reads = client, vector, reads

    def __getitem__(self, name: str) -> Ring:
        self.reads.append((name, self.client))
        return self.vector[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.vector)

    def __len__(self) -> int:
        return len(self.vector)


def test_vectors_are_read_once_and_tensor_by_tensor(
    rehearsal: type, contents: Callable[..., dict[str, Parameters]]
) -> None:
    made: Any = rehearsal(contents(4))
    made.play()
    reads: list[tuple[str, str]] = []
    server.unmask_mean(made.round, {name: Watched(name, v, reads) for name, v in made.vectors.items()})
    tensors = ("pooling.w", "predictive.w", "#scalars")
    assert reads == [(tensor, client) for tensor in tensors for client in NAMES[:4]]


def test_an_update_is_left_as_it_was(rehearsal: type, contents: Callable[..., dict[str, Parameters]]) -> None:
    everybody, copy = contents(3), contents(3)
    rehearsal(everybody).play()
    for name, content in everybody.items():
        arrays_before: Arrays = copy[name].arrays
        assert all(np.array_equal(value, arrays_before[tensor]) for tensor, value in content.arrays.items())
