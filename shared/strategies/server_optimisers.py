"""Server optimisers: Adam, Yogi, GA and momentum steps from the centre of a round's updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from shared.errors import SettingsError
from shared.method.declaration import TensorSpec
from shared.method.graph import Float64
from shared.method.parameters import (
    STORED,
    Array,
    Arrays,
    Form,
    Parameters,
    State,
    Update,
    array_form,
    array_part,
    blocks,
)
from shared.method.settings import Magnitudes, MethodSettings, Server, ServerStepSettings
from shared.strategies.aggregation import mean_of_updates
from shared.strategies.strategy import Combine, Strategy

SecondMoment = Callable[[Float64, Float64, float], Float64]
"""(v, q, b2) -> v after the round."""


def adagrad(v: Float64, q: Float64, beta2: float) -> Float64:
    """Computes v + q, the sum of all rounds."""
    del beta2
    return v + q


def adam(v: Float64, q: Float64, beta2: float) -> Float64:
    """Computes b2 v + (1 - b2) q."""
    return beta2 * v + (1.0 - beta2) * q


def yogi(v: Float64, q: Float64, beta2: float) -> Float64:
    """Computes v - (1 - b2) q sign(v - q)."""
    return v - (1.0 - beta2) * q * np.sign(v - q)


# Paper: formula (3) of C-SME is missing in our copy, which tells its cases in words; here: two readings of it,
# because each contradicts another sentence. Compared as v <= q, not as v / q <= 1, so that q = 0 needs no case.
def clip(v: Float64, q: Float64, beta2: float) -> Float64:
    """Computes v + (1 - b2) max(q - v, -q).

    Adam's as long as v <= 2 q, Yogi's beyond. It decays on all of q < v <= 2 q.
    """
    return v + (1.0 - beta2) * np.maximum(q - v, -q)


def ramp(v: Float64, q: Float64, beta2: float) -> Float64:
    """Computes v - (1 - b2) q f: Yogi's without its jump.

    f = -1 if v <= q, 2 v / q - 3 where v <= 2 q, +1 beyond.
    """
    between = np.where(v <= 2.0 * q, 2.0 * v - 3.0 * q, q)
    return v - (1.0 - beta2) * np.where(v <= q, -q, between)


class Moments(NamedTuple):
    """Moments m and v of some numbers; momentum does not use v."""

    first: Float64
    second: Float64


@dataclass(frozen=True)
class ServerOptimiser:
    """Optimiser of the server's state.

    rate: eta. beta1, beta2: b1, b2. tau: the least divisor; v begins at tau^2. second_moment: how v follows the
    round's squared magnitude; None: momentum, which has no v. resistant: that magnitude is D', the centre of the
    clients' |changes|; otherwise D, the centre's change.
    """

    rate: float
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    second_moment: SecondMoment | None = None
    resistant: bool = False

    def begin(self, size: int) -> Moments:
        """Returns the first moments: m = 0, v = tau^2."""
        return Moments(np.zeros(size), np.full(size, self.tau**2))

    def step(self, change: Float64, magnitude: Float64, moments: Moments) -> tuple[Float64, Moments]:
        """Computes what is added to the numbers, and the moments after it.

        change: D. magnitude: |D| or D'. m = b1 m + (1 - b1) D, and eta m / (sqrt(v) + tau); momentum: m = b1 m + D,
        and eta m (Hsu, Qi, Brown 2019, arXiv 1909.06335). Momentum also moves coordinates with zero gradient.
        """
        # Paper: how m follows the changes is not told; here: the signed D, because with D' every step would go up.
        # No correction of the moments' start: Algorithm 1 has none, as Algorithm 2 of Reddi et al. has none.
        if self.second_moment is None:
            first = self.beta1 * moments.first + change
            return self.rate * first, Moments(first, moments.second)
        first = self.beta1 * moments.first + (1.0 - self.beta1) * change
        second = self.second_moment(moments.second, np.square(magnitude), self.beta2)
        return self.rate * first / (np.sqrt(second) + self.tau), Moments(first, second)


MAGNITUDE = "magnitude."
"""Prefix of the names of tensors' magnitudes."""
REPORTED = MAGNITUDE + "update"
"""The one number that a client of a secure federation reports of its whole update."""


def declare_magnitude() -> tuple[TensorSpec, ...]:
    """Declares the reported magnitude of an update: one number."""
    return (TensorSpec(name=REPORTED, shape=(1,)),)


def report_magnitude(leaving: Parameters, base: Arrays) -> Parameters:
    """Adds the root mean square of an update's change to what leaves a client.

    base: where the round began for all clients. One number and not one for each: of sums of x and of |x| over three
    silos most numbers could be told apart, as each is +-|x| (attacks/test_reported_magnitudes.py). It is made of what
    leaves, after noise where there is some, so that it tells nothing that the update does not.
    """
    changes = [np.subtract(value, base[name], dtype=np.float64) for name, value in leaving.arrays.items()]
    squares, count = sum(float(np.square(one).sum()) for one in changes), sum(one.size for one in changes)
    found = np.array([np.sqrt(squares / max(1, count))], dtype=np.float32)
    return Parameters({**leaving.arrays, REPORTED: found}, leaving.scalars)


def combine_with_magnitudes(before: State, updates: Sequence[Update], *, combine: Combine) -> State:
    """Computes the updates' centre; its reports hold the same centre of their magnitudes.

    With a median or Krum, one bad client then does not set the size of the step.
    """
    return combine(before, [replace(one, arrays=UpdateWithMagnitudes(before.arrays, one.arrays)) for one in updates])


@dataclass(frozen=True)
class UpdateWithMagnitudes(Mapping[str, Array]):
    """Update with |sent - before| of each tensor under other names, computed when needed."""

    before: Arrays
    sent: Arrays

    def __getitem__(self, name: str) -> Array:
        whole = self.form(name)
        return self.part(name, 0, whole.size).reshape(whole.shape)

    def form(self, name: str) -> Form:
        return array_form(self.sent, name.removeprefix(MAGNITUDE))

    def part(self, name: str, begin: int, end: int) -> Array:
        values = array_part(self.sent, name.removeprefix(MAGNITUDE), begin, end)
        return values if not name.startswith(MAGNITUDE) else self._distance(name, values, begin, end)

    def _distance(self, name: str, values: Array, begin: int, end: int) -> Float64:
        old = array_part(self.before, name.removeprefix(MAGNITUDE), begin, end)
        return np.abs(values.astype(np.float64) - old)

    def __iter__(self) -> Iterator[str]:
        yield from self.sent
        yield from (MAGNITUDE + name for name in self.sent)

    def __len__(self) -> int:
        return 2 * len(self.sent)


FIRST, SECOND = "m.", "v."
LARGEST = float(np.finfo(np.float32).max)


def advance_state(before: State, centre: State, *, optimiser: ServerOptimiser) -> State:
    """Makes the server's step from `before`; scalars and the rest are the centre's."""
    arrays: dict[str, Array] = {}
    memory: dict[str, Array] = {}
    for name in sorted(before.arrays):
        kind = array_form(before.arrays, name)
        arrays[name] = _empty(kind)
        memory |= {key + name: _empty(kind) for key in _remembered(optimiser)}
        for begin, end in blocks(kind.size):
            moved, moments = _step_block(before, centre, name, (begin, end), optimiser)
            arrays[name].reshape(-1)[begin:end] = _bound(moved)
            for key, values in zip(_remembered(optimiser), moments, strict=False):  # momentum has no v
                memory[key + name].reshape(-1)[begin:end] = _bound(values)
    return replace(centre, arrays=arrays, memory=memory)


def _step_block(
    before: State, centre: State, name: str, span: tuple[int, int], optimiser: ServerOptimiser
) -> tuple[Float64, Moments]:
    """Computes some numbers of a tensor after the round, and their moments."""
    old = array_part(before.arrays, name, *span).astype(np.float64)
    change = array_part(centre.arrays, name, *span) - old
    magnitude = _magnitude_of(centre, name, span, change) if optimiser.resistant else change
    step, moments = optimiser.step(change, magnitude, _recall(before, name, span, optimiser))
    return old + step, moments


def _magnitude_of(centre: State, name: str, span: tuple[int, int], change: Float64) -> Float64:
    """Computes D', which is never below |D|: reports that say less do not count.

    So no step becomes longer by them. Where clients report one number of their whole update, it stands for each
    number's D'.
    """
    if REPORTED in centre.reports:
        return np.maximum(float(array_part(centre.reports, REPORTED, 0, 1)[0]), np.abs(change))
    return np.maximum(array_part(centre.reports, MAGNITUDE + name, *span), np.abs(change))


def _recall(before: State, name: str, span: tuple[int, int], optimiser: ServerOptimiser) -> Moments:
    """Returns the moments of these numbers, or the first ones."""
    begun = optimiser.begin(span[1] - span[0])
    kept = {key: array_part(before.memory, key + name, *span) for key in (FIRST, SECOND) if key + name in before.memory}
    first, second = kept.get(FIRST, begun.first), kept.get(SECOND, begun.second)
    return Moments(first.astype(np.float64), second.astype(np.float64))


def _remembered(optimiser: ServerOptimiser) -> tuple[str, ...]:
    return (FIRST,) if optimiser.second_moment is None else (FIRST, SECOND)


def _bound(values: Float64) -> Float64:
    """Clips values to the range of float32, so that squares stay finite."""
    return np.clip(values, -LARGEST, LARGEST)


def _empty(kind: Form) -> Array:
    return np.empty(kind.shape, dtype=STORED[kind.dtype])


SECOND_MOMENTS: dict[str, SecondMoment | None] = {"momentum": None, "adagrad": adagrad, "adam": adam, "yogi": yogi}
READINGS: dict[str, SecondMoment] = {"clip": clip, "ramp": ramp}
"""Readings of the second moment of C-SME, by setting."""
RATES = {"momentum": 1.0}
RATE = 5e-3  # Lou et al.: the best of their sweep


def add_server_optimiser(strategy: Strategy, method: MethodSettings) -> Strategy:
    """Adds the server optimiser of the settings, or its own, to a strategy.

    Raises SettingsError if it cannot be: it has none, or sends nothing, or gives each client what the state does
    not hold.
    """
    server = _choose_server(strategy, method)
    if server == "none":
        return strategy
    _require_possible(strategy, method, server)
    magnitudes = magnitudes_for(server, method)
    optimiser = build_optimiser(server, method.server_step, resistant=magnitudes != "off")
    stepped = replace(strategy, server=server, step=partial(advance_state, optimiser=optimiser))
    if magnitudes == "computed":
        combine = partial(combine_with_magnitudes, combine=strategy.combine or mean_of_updates)
        return replace(stepped, combine=combine)
    if magnitudes == "reported":
        return replace(stepped, reports=declare_magnitude(), report=report_magnitude)
    return stepped


def build_optimiser(server: Server, settings: ServerStepSettings, *, resistant: bool) -> ServerOptimiser:
    """Builds the named optimiser, with its default rate where none is set."""
    rate = RATES.get(server, RATE) if settings.rate is None else settings.rate
    second = READINGS[settings.second_moment] if server == "ga" else SECOND_MOMENTS[server]
    return ServerOptimiser(rate, settings.beta1, settings.beta2, settings.tau, second, resistant)


def magnitudes_for(server: Server, method: MethodSettings) -> Magnitudes:
    """Returns where D' comes from: for FedGA computed, unless set otherwise."""
    return method.server_step.magnitudes or ("computed" if server == "ga" else "off")


def _choose_server(strategy: Strategy, method: MethodSettings) -> Server:
    if strategy.server != "none" and method.server not in ("none", strategy.server):
        raise SettingsError(f"server: expected none or {strategy.server} with {strategy.name}, got {method.server}")
    chosen = method.server if strategy.server == "none" else strategy.server
    if chosen == "none" and method.server_step != ServerStepSettings():
        raise SettingsError("server_step: expected its defaults with server = none, which adopts the centre as it is")
    return chosen


def _assume_one_item(method: MethodSettings) -> MethodSettings:
    """Returns settings with one item where the catalogue is not known yet.

    So a strategy that shares items can list its tensors. It is built again with the true size before anything is
    declared.
    """
    return method if method.catalogue else method.model_copy(update={"catalogue": 1})


def _require_possible(strategy: Strategy, method: MethodSettings, server: Server) -> None:
    """Raises SettingsError for strategies without a common state, and momentum with magnitudes."""
    if (
        strategy.answer is not None
        or strategy.step is not None
        or not strategy.declaration(_assume_one_item(method)).tensors
    ):
        words = "whose clients do not go on from a common state"
        if strategy.reparametrised:
            words = "which has a step of its own"
        raise SettingsError(f"server: expected none with strategy {strategy.name}, {words}, got {server}")
    if server == "momentum" and method.server_step.magnitudes not in (None, "off"):
        words = "which has no second moment"
        raise SettingsError(f"server_step.magnitudes: expected off with server = momentum, {words}")
