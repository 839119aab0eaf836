"""The run's settings -> the strategy with the server optimiser that they name, whatever it combines updates by."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from shared.errors import SettingsError
from shared.method.setting_groups import Magnitudes, Server, ServerStepSettings
from shared.method.settings import MethodSettings
from shared.strategies.mean import mean_of_updates
from shared.strategies.server.magnitudes import combine_with_magnitudes, declare_magnitude, report_magnitude
from shared.strategies.server.optimiser import ServerOptimiser
from shared.strategies.server.second_moments import SecondMoment, adagrad, adam, clip, ramp, yogi
from shared.strategies.server.step import advance_state
from shared.strategies.strategy import Strategy

SECOND_MOMENTS: dict[str, SecondMoment | None] = {"momentum": None, "adagrad": adagrad, "adam": adam, "yogi": yogi}
READINGS: dict[str, SecondMoment] = {"clip": clip, "ramp": ramp}
"""Of C-SME."""
RATES = {"momentum": 1.0}
RATE = 5e-3  # Lou et al.: the best of their sweep


def optimise(strategy: Strategy, method: MethodSettings) -> Strategy:
    """The strategy, its state moved by the server optimiser of the settings, or by its own. SettingsError where it
    cannot be: it has none, or sends nothing, or gives each client what the state does not hold."""
    server = _chosen_server(strategy, method)
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
    """The optimiser of this name, with the rate that it has where none is set."""
    rate = RATES.get(server, RATE) if settings.rate is None else settings.rate
    second = READINGS[settings.second_moment] if server == "ga" else SECOND_MOMENTS[server]
    return ServerOptimiser(rate, settings.beta1, settings.beta2, settings.tau, second, resistant)


def magnitudes_for(server: Server, method: MethodSettings) -> Magnitudes:
    """Where D' comes from: of FedGA computed, unless the settings say otherwise."""
    return method.server_step.magnitudes or ("computed" if server == "ga" else "off")


def _chosen_server(strategy: Strategy, method: MethodSettings) -> Server:
    if strategy.server != "none" and method.server not in ("none", strategy.server):
        raise SettingsError(f"server: expected none or {strategy.server} with {strategy.name}, got {method.server}")
    chosen = method.server if strategy.server == "none" else strategy.server
    if chosen == "none" and method.server_step != ServerStepSettings():
        raise SettingsError("server_step: expected its defaults with server = none, which adopts the centre as it is")
    return chosen


def _with_items(method: MethodSettings) -> MethodSettings:
    """Settings by which a strategy that shares items can tell its tensors. Before the catalogue is known it has one
    item: the strategy is built again, with the true size, before anything is declared to anybody."""
    return method if method.catalogue else method.model_copy(update={"catalogue": 1})


def _require_possible(strategy: Strategy, method: MethodSettings, server: Server) -> None:
    """SettingsError for a strategy without a common state to step, and for magnitudes that momentum has no use for."""
    if (
        strategy.answer is not None
        or strategy.step is not None
        or not strategy.declaration(_with_items(method)).tensors
    ):
        words = "whose clients do not go on from a common state"
        raise SettingsError(f"server: expected none with strategy {strategy.name}, {words}, got {server}")
    if server == "momentum" and method.server_step.magnitudes not in (None, "off"):
        words = "which has no second moment"
        raise SettingsError(f"server_step.magnitudes: expected off with server = momentum, {words}")
