"""The methods of the session tables, and the rates among which validation chooses for each."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

from shared.method.settings import MethodSettings, ServerStepSettings, method_settings
from shared.strategies import build_strategy

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"strategy": "fedavg"},
    "fedprox": {"strategy": "fedprox"},
    "fedadam": {"strategy": "fedadam"},
    "fedyogi": {"strategy": "fedyogi"},
    "fedga": {"strategy": "fedga"},
}
ABLATION: dict[str, dict[str, Any]] = {
    "adam + DRA": {"strategy": "fedadam", "server_step.magnitudes": "computed"},
    "yogi + DRA": {"strategy": "fedyogi", "server_step.magnitudes": "computed"},
    "clip, no DRA": {"strategy": "fedga", "server_step.magnitudes": "off"},
    "ramp, no DRA": {"strategy": "fedga", "server_step.magnitudes": "off", "server_step.second_moment": "ramp"},
    "ramp": {"strategy": "fedga", "server_step.second_moment": "ramp"},
}


class Regime(NamedTuple):
    """What devices train with, and the rates that are tried: of clients whose server adopts the mean, of clients whose
    server steps, and of that server. tau: of the server; SGD's changes are far below the usual one."""

    alone: tuple[float, ...]
    clients: tuple[float, ...]
    servers: tuple[float, ...]
    tau: float


REGIMES = {
    "adam": Regime((0.01, 0.03, 0.1, 0.3), (0.01, 0.03, 0.1), (0.01, 0.03, 0.1), 1e-3),
    "sgd": Regime((0.03, 0.1, 0.3, 1.0), (0.03, 0.1, 0.3), (0.003, 0.01, 0.03), 1e-5),
}


def build_method(items: int, changes: dict[str, Any]) -> tuple[str, MethodSettings]:
    """The strategy's name, and the method's settings with these changes, for a table of so many items."""
    values = {"model": "srgnn", "width": 64, "catalogue": items, "batch_size": 50, **changes}
    return values.pop("strategy"), method_settings(**values)


def list_rates(items: int, changes: dict[str, Any], optimiser: str) -> list[dict[str, float]]:
    """The client rates, and beside each the server rates where the strategy's server steps."""
    regime = REGIMES[optimiser]
    if build_strategy(*build_method(items, changes)).server == "none":
        return [{"learning_rate": client} for client in regime.alone]
    pairs, usual = itertools.product(regime.clients, regime.servers), ServerStepSettings().tau
    tau = {} if regime.tau == usual else {"server_step.tau": regime.tau}
    return [{"learning_rate": client, "server_step.rate": server, **tau} for client, server in pairs]
