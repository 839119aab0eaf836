"""The methods of the session tables, and the rates among which validation chooses for each."""

from __future__ import annotations

import itertools
from typing import Any

from shared.method.settings import MethodSettings, method_settings
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
ALONE_RATES, CLIENT_RATES, SERVER_RATES = (0.01, 0.03, 0.1, 0.3), (0.01, 0.03, 0.1), (0.01, 0.03, 0.1)
"""Of devices: of clients whose server adopts the mean, of clients whose server steps, and of that server."""


def build_method(items: int, changes: dict[str, Any]) -> tuple[str, MethodSettings]:
    """The strategy's name, and the method's settings with these changes, for a table of so many items."""
    values = {"model": "srgnn", "width": 64, "catalogue": items, "batch_size": 50, **changes}
    return values.pop("strategy"), method_settings(**values)


def list_rates(items: int, changes: dict[str, Any]) -> list[dict[str, float]]:
    """The client rates, and beside each the server rates where the strategy's server steps."""
    if build_strategy(*build_method(items, changes)).server == "none":
        return [{"learning_rate": client} for client in ALONE_RATES]
    pairs = itertools.product(CLIENT_RATES, SERVER_RATES)
    return [{"learning_rate": client, "server_step.rate": server} for client, server in pairs]
