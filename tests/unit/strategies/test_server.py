"""Server optimisers: worked numbers, properties of their rules, and what they are composed with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as draw
from hypothesis.extra.numpy import arrays

from aggregator_service.aggregation.bodies import pack_state, unpack_state
from shared.errors import SettingsError
from shared.method.parameters import Parameters, State, Update, digest_arrays
from shared.method.settings import MethodSettings, ServerStepSettings, method_settings
from shared.method.tensors import initial_parameters
from shared.protocol.wire import encode_body, open_parameters
from shared.strategies import STRATEGIES, build_strategy
from shared.strategies.aggregation import mean_of_updates
from shared.strategies.agreement import declare_federation
from shared.strategies.server_optimisers import (
    Moments,
    SecondMoment,
    ServerOptimiser,
    adagrad,
    adam,
    advance_state,
    build_optimiser,
    clip,
    combine_with_magnitudes,
    ramp,
    yogi,
)
from shared.strategies.strategy import Strategy

RULES: dict[str, SecondMoment] = {"adagrad": adagrad, "adam": adam, "yogi": yogi, "clip": clip, "ramp": ramp}
D, MAGNITUDE = np.array([0.1]), np.array([0.2])  # of two clients that move a number by +.3 and by -.1
SERVERS = ("momentum", "adagrad", "adam", "yogi", "ga")
FROM_ONE_STATE = sorted(set(STRATEGIES) - {"local", "fedpub", "fedsgd", "fedgsp"})


def second(rule: SecondMoment, v: float, magnitude: float) -> float:
    return float(rule(np.array([v]), np.array([magnitude**2]), 0.99)[0])


@pytest.mark.parametrize(
    ("v", "adam_", "yogi_", "adam_resistant", "yogi_resistant", "clip_", "ramp_"),
    [
        (0.02, 0.0199, 0.0199, 0.0202, 0.0204, 0.0202, 0.0204),
        (0.05, 0.0496, 0.0499, 0.0499, 0.0496, 0.0499, 0.0502),
        (0.06, 0.0595, 0.0599, 0.0598, 0.0596, 0.0598, 0.0600),
        (0.07, 0.0694, 0.0699, 0.0697, 0.0696, 0.0697, 0.0698),
        (0.10, 0.0991, 0.0999, 0.0994, 0.0996, 0.0996, 0.0996),
    ],
)
def test_worked_second_moments(
    v: float, adam_: float, yogi_: float, adam_resistant: float, yogi_resistant: float, clip_: float, ramp_: float
) -> None:
    found = [second(adam, v, 0.1), second(yogi, v, 0.1), second(adam, v, 0.2), second(yogi, v, 0.2)]
    found += [second(clip, v, 0.2), second(ramp, v, 0.2)]
    np.testing.assert_allclose(found, [adam_, yogi_, adam_resistant, yogi_resistant, clip_, ramp_], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("rule", "magnitude", "v", "after", "step"),
    [
        (clip, MAGNITUDE, 0.06, 0.0598, 2.0363249e-4),
        (ramp, MAGNITUDE, 0.06, 0.06, 2.0329420e-4),
        (adam, D, 0.06, 0.0595, 2.0414311e-4),
        (adam, D, 1e-6, 1.0099e-4, 4.5251416e-3),
        (clip, MAGNITUDE, 1e-6, 4.0099e-4, 2.3781513e-3),
        (ramp, MAGNITUDE, 1e-6, 4.0100e-4, 2.3781230e-3),
    ],
)
def test_worked_steps(rule: SecondMoment, magnitude: np.ndarray, v: float, after: float, step: float) -> None:
    optimiser = ServerOptimiser(5e-3, second_moment=rule)
    moved, moments = optimiser.step(D, magnitude, Moments(np.zeros(1), np.array([v])))
    np.testing.assert_allclose(moments.first, 0.01, rtol=0, atol=1e-12)
    np.testing.assert_allclose(moments.second, after, rtol=0, atol=1e-10 if v == 1e-6 else 1e-12)
    np.testing.assert_allclose(moved, step, rtol=0, atol=1e-10)


@given(
    v=arrays(np.float64, 8, elements=draw.floats(0, 1e6)),
    magnitude=arrays(np.float64, 8, elements=draw.floats(0, 1e3)),
    beta2=draw.floats(0, 0.999),
)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_a_second_moment_is_never_negative(
    rule: SecondMoment, v: np.ndarray, magnitude: np.ndarray, beta2: float
) -> None:
    assert (rule(v, magnitude**2, beta2) >= 0).all()


@pytest.mark.parametrize("rule", [adagrad, yogi, clip, ramp], ids=["adagrad", "yogi", "clip", "ramp"])
def test_a_number_that_nobody_touched_keeps_its_second_moment(rule: SecondMoment) -> None:
    assert second(rule, 0.3, 0.0) == 0.3


@pytest.mark.parametrize("rule", [clip, ramp], ids=["clip", "ramp"])
@pytest.mark.parametrize("border", [1.0, 2.0])
def test_both_readings_have_no_jump_where_their_cases_meet(rule: SecondMoment, border: float) -> None:
    below, above = (second(rule, border * (1 + side * 1e-13), 1.0) for side in (-1, 1))
    assert abs(below - above) < 1e-12


def test_yogi_jumps_where_both_readings_do_not() -> None:
    below, above = (second(yogi, 1 + side * 1e-13, 1.0) for side in (-1, 1))
    assert abs(below - above) > 0.01


def test_the_readings_meet_at_the_ends_and_differ_between() -> None:
    assert second(clip, 0.0, 1.0) == second(ramp, 0.0, 1.0)
    assert second(clip, 2.5, 1.0) == second(ramp, 2.5, 1.0)
    assert second(clip, 1.25, 1.0) < 1.25 < second(ramp, 1.25, 1.0)


def settings(server: str, **changes: object) -> MethodSettings:
    return method_settings(width=2, layers=1, catalogue=5, start="random", server=server, **changes)


def start(strategy: Strategy, seed: int = 0) -> dict[str, np.ndarray]:
    return initial_parameters(strategy.tensors(settings("none")), seed, exact=False)


def moved(strategy: Strategy, *changes: float) -> list[Update]:
    """Clients that each moved every number by so much."""
    begun, scalars = start(strategy), {name: scalar.range.least for name, scalar in strategy.scalars.items()}
    return [
        Update(f"client-{place}", {name: (value + change).astype(np.float32) for name, value in begun.items()}, scalars)
        for place, change in enumerate(changes)
    ]


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize(
    "name", [name for name in FROM_ONE_STATE if STRATEGIES[name](settings("none")).server == "none"]
)
def test_every_strategy_with_a_common_state_takes_every_server(name: str, server: str) -> None:
    strategy = build_strategy(name, settings(server))
    before = State(start(strategy))
    after = strategy.aggregate(before, moved(strategy, 0.3, -0.1))
    for tensor, value in before.arrays.items():
        assert (after.arrays[tensor] > value).all()
    assert after.reports == {} and set(strategy.personalise(after, None).arrays) == set(before.arrays)


@pytest.mark.parametrize("server", SERVERS)
def test_no_change_and_no_memory_is_no_step(server: str) -> None:
    strategy = build_strategy("fedavg", settings(server))
    after = strategy.aggregate(State(start(strategy)), moved(strategy, 0.0, 0.0))
    assert digest_arrays(after.arrays) == digest_arrays(start(strategy))


def test_what_is_remembered_moves_a_number_that_nobody_touched() -> None:
    strategy = build_strategy("fedga", settings("none"))
    first = strategy.aggregate(State(start(strategy)), moved(strategy, 0.3, -0.1))
    still = [replace(one, arrays=first.arrays) for one in moved(strategy, 0.0, 0.0)]
    again = strategy.aggregate(first, still)
    assert all((again.arrays[name] > value).all() for name, value in first.arrays.items())


def magnitudes(strategy: Strategy, *changes: float) -> dict[str, np.ndarray]:
    """sqrt(v) of the first round of Adagrad, whose v begins so low that D' is what is left: by tensor."""
    after = strategy.aggregate(State(start(strategy)), moved(strategy, *changes))
    return {name.removeprefix("v."): np.sqrt(v) for name, v in after.memory.items() if name.startswith("v.")}


def watching(name: str, **changes: object) -> Strategy:
    step = {"magnitudes": "computed", "tau": 1e-12}
    return build_strategy(
        name, settings("adagrad", **{f"server_step.{key}": value for key, value in step.items()}, **changes)
    )


@pytest.mark.parametrize("name", ["fedavg", "fedmf"])
def test_the_magnitude_is_the_length_of_the_change_where_all_agree_and_more_where_they_do_not(name: str) -> None:
    strategy = watching(name)
    for found, expected in (((0.3, 0.1), 0.2), ((-0.3, -0.1), 0.2), ((0.3, -0.1), 0.2), ((0.3, 0.0), 0.15)):
        if name == "fedmf" and 0.0 in found:
            expected = 0.3  # its centre is of those who moved a row, and so is the magnitude
        for value in magnitudes(strategy, *found).values():
            np.testing.assert_allclose(value, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("centre", "expected"),
    [
        ({"aggregate": "median"}, 0.2),
        ({"aggregate": "trimmed_mean", "tolerated": 1}, 0.2),
        ({"aggregate": "krum", "tolerated": 1}, 0.2),
        ({"clip_factor": 1.0}, 0.2),
    ],
)
def test_one_bad_client_does_not_set_the_size_of_the_step(centre: dict[str, object], expected: float) -> None:
    changes = (0.2, 0.2, -0.2, 0.2, 1e6)
    for value in magnitudes(watching("fedavg", **centre), *changes).values():
        np.testing.assert_allclose(value, expected, atol=1e-4)
    for value in magnitudes(watching("fedavg"), *changes).values():
        assert (value > 1e5).all()


@given(
    changes=arrays(np.float32, draw.integers(2, 6), elements=draw.floats(-1, 1, width=16)),
)
@settings_of_hypothesis(max_examples=50, deadline=None)
def test_the_magnitude_is_above_the_change_exactly_where_signs_differ(changes: np.ndarray) -> None:
    before = State({"w": np.zeros(1, dtype=np.float32)})
    updates = [Update(f"client-{place}", {"w": changes[place : place + 1]}, {}) for place in range(len(changes))]
    centre = combine_with_magnitudes(before, updates, combine=mean_of_updates)
    change, magnitude = abs(float(centre.arrays["w"][0])), float(centre.reports["magnitude.w"][0])
    if (changes >= 0).all() or (changes <= 0).all():
        assert magnitude == pytest.approx(change, abs=1e-6)
    else:
        least = np.abs(changes[changes < 0]).sum() if changes.sum() > 0 else changes[changes > 0].sum()
        assert magnitude - change == pytest.approx(2 * least / len(changes), abs=1e-5)


@pytest.mark.parametrize("reported", [-0.2, 0.0, 0.05])
def test_reports_of_less_than_the_change_do_not_lengthen_the_step(reported: float) -> None:
    """A member of a secure round may say anything; below |D| no honest sum of |changes| lies."""
    before = State({"w": np.zeros(1, dtype=np.float32)})
    optimiser = build_optimiser("ga", ServerStepSettings(), resistant=True)
    found = [
        advance_state(before, centre_reporting(magnitude), optimiser=optimiser).arrays["w"]
        for magnitude in (reported, 0.1)
    ]
    assert found[0] == found[1]


def centre_reporting(magnitude: float) -> State:
    """Of a round that moved one number by .1, with this mean of the clients' magnitudes."""
    return State({"w": np.float32([0.1])}, reports={"magnitude.w": np.float32([magnitude])})


def test_moments_are_kept_as_float32_and_computed_in_float64() -> None:
    strategy = build_strategy("fedga", settings("none"))
    first = strategy.aggregate(State(start(strategy)), moved(strategy, 0.3, -0.1))
    assert {value.dtype for value in first.memory.values()} == {np.dtype(np.float32)}
    optimiser = build_optimiser("adam", ServerStepSettings(beta1=0.0, beta2=0.0, tau=1e-3, rate=1.0), resistant=False)
    before = State({"w": np.float32([1.0])}, memory={"m.w": np.float32([0.0]), "v.w": np.float32([1e-30])})
    after = advance_state(before, State({"w": np.float32([1.0 + 2e-7])}), optimiser=optimiser)
    change = float(np.float32(1.0 + 2e-7)) - 1.0  # whose square is no float32 number beside tau
    assert float(after.arrays["w"][0]) == pytest.approx(1.0 + change / (change + 1e-3), rel=1e-6)


def test_a_client_mixes_its_update_with_the_stepped_state() -> None:
    strategy = build_strategy("lpsfed", settings("adam"))
    before = State(start(strategy))
    updates = moved(strategy, 0.3, -0.1)
    after = strategy.aggregate(before, updates)
    assert strategy.mixing is not None
    alone = strategy.personalise(after, None)
    for name, value in alone.arrays.items():
        np.testing.assert_array_equal(value, after.arrays[name])
    mixed = strategy.personalise(after, updates[0])
    for name, value in mixed.arrays.items():
        low = np.minimum(after.arrays[name], updates[0].arrays[name]) - 1e-6
        high = np.maximum(after.arrays[name], updates[0].arrays[name]) + 1e-6
        assert ((low <= value) & (value <= high)).all()


def test_the_lasting_difference_of_a_client_is_in_its_change() -> None:
    """The base is the state: two equal updates w + c give D = c, whatever their clients had received (Eq. 14)."""
    strategy = build_strategy("lpsfed", settings("momentum", **{"server_step.beta1": 0.0}))
    before = State(start(strategy))
    after = strategy.aggregate(before, moved(strategy, 0.25, 0.25))
    for name, value in before.arrays.items():
        np.testing.assert_allclose(after.arrays[name] - value, 0.25, atol=1e-6)


@pytest.mark.parametrize("server", SERVERS)
def test_a_restart_between_two_rounds_changes_nothing(server: str, tmp_path: Path) -> None:
    strategy = build_strategy("fedavg", settings(server))
    first = strategy.aggregate(State(start(strategy)), moved(strategy, 0.3, -0.1))
    (tmp_path / "state").write_bytes(encode_body(pack_state(first)))
    revived = unpack_state(open_parameters(tmp_path / "state")[1], first.latest)
    one, other = (strategy.aggregate(state, moved(strategy, 0.1, -0.2)) for state in (first, revived))
    assert digest_arrays(pack_state(one).arrays) == digest_arrays(pack_state(other).arrays)


def test_without_a_server_the_state_is_the_centre() -> None:
    strategy = build_strategy("fedavg", settings("none"))
    assert strategy.step is None
    assert settings("none").model_dump(exclude_unset=False).keys().isdisjoint({"server", "server_step"})


@pytest.mark.parametrize(("name", "server"), [("fedadam", "adam"), ("fedyogi", "yogi"), ("fedga", "ga")])
def test_the_named_ones_are_fedavg_with_a_server(name: str, server: str) -> None:
    named, composed = build_strategy(name, settings("none")), build_strategy("fedavg", settings(server))
    updates = moved(named, 0.3, -0.1)
    one, other = (strategy.aggregate(State(start(named)), updates) for strategy in (named, composed))
    assert digest_arrays(pack_state(one).arrays) == digest_arrays(pack_state(other).arrays)


def test_fedga_follows_magnitudes_by_default_and_either_reading_of_its_formula() -> None:
    by_default = build_optimiser("ga", ServerStepSettings(), resistant=True)
    assert by_default.second_moment is clip and by_default.rate == 5e-3
    assert build_optimiser("ga", ServerStepSettings(second_moment="ramp"), resistant=True).second_moment is ramp
    assert build_optimiser("momentum", ServerStepSettings(), resistant=False).rate == 1.0


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("local", {"server": "adam"}, "server: expected none with strategy local"),
        ("fedpub", {"server": "ga"}, "server: expected none with strategy fedpub"),
        ("fedga", {"server": "adam"}, "server: expected none or ga with fedga, got adam"),
        ("fedavg", {"server_step.rate": 0.1}, "server_step: expected its defaults with server = none"),
        ("fedavg", {"server": "momentum", "server_step.magnitudes": "computed"}, "expected off with server = momentum"),
    ],
)
def test_what_cannot_be_stepped_is_refused(name: str, changes: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        build_strategy(name, method_settings(width=2, **changes))


def declared(name: str, secure: bool, **changes: object) -> Callable[[], object]:
    method = settings("none", **changes)
    return lambda: declare_federation(build_strategy(name, method), method, secure=secure)


def test_a_secure_federation_sums_magnitudes_only_where_clients_report_them() -> None:
    with pytest.raises(SettingsError, match=r"^secure: expected server_step.magnitudes = reported"):
        declared("fedga", True)()
    with pytest.raises(SettingsError, match=r"^server_step.magnitudes: expected computed"):
        declared("fedga", False, **{"server_step.magnitudes": "reported"})()
    found = declared("fedga", True, **{"server_step.magnitudes": "reported"})()
    assert [(spec.name, spec.shape) for spec in found.reports] == [("magnitude.update", (1,))]  # type: ignore[attr-defined]
    assert declared("fedyogi", True)().reports == ()  # type: ignore[attr-defined]


def test_a_report_is_made_of_what_leaves() -> None:
    strategy = build_strategy("fedga", settings("none", **{"server_step.magnitudes": "reported"}))
    (noised,) = moved(strategy, -0.25)
    assert strategy.report is not None
    leaving = strategy.report(Parameters(noised.arrays, {}), start(strategy))
    np.testing.assert_allclose(leaving.arrays["magnitude.update"], [0.25], atol=1e-6)
    assert all(leaving.arrays[name] is noised.arrays[name] for name in start(strategy))


@pytest.mark.parametrize("magnitudes", [None, "reported"])
def test_a_strategy_that_shares_items_can_be_built_before_the_catalogue_is_known(magnitudes: str | None) -> None:
    """`lpsfed simulate DATA --strategy fedmf --set server=adam` builds it so: its catalogue follows later."""
    step = {} if magnitudes is None else {"server_step.magnitudes": magnitudes}
    method = method_settings(server="adam", **step)
    early, later = (build_strategy("fedmf", one) for one in (method, method.model_copy(update={"catalogue": 7})))
    assert early.server == later.server == "adam"
    with pytest.raises(SettingsError, match="catalogue: expected the size"):
        early.declaration(method)
    assert [tensor.shape for tensor in later.reports] == ([] if magnitudes is None else [(1,)])
