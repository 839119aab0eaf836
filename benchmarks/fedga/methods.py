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
CLIENT_RATES, SERVER_RATES = (0.01, 0.03, 0.1), (0.01, 0.03, 0.1)
"""Of devices. Without a server's step the server's rate is 1, which adopts the mean."""


def build_method(items: int, changes: dict[str, Any]) -> tuple[str, MethodSettings]:
    """The strategy's name, and the method's settings with these changes, for a table of so many items."""
    values = {"model": "srgnn", "width": 64, "catalogue": items, "batch_size": 50, **changes}
    return values.pop("strategy"), method_settings(**values)


def list_rates(items: int, changes: dict[str, Any]) -> list[dict[str, float]]:
    """The client rates, and beside each the server rates where the strategy's server steps."""
    strategy = build_strategy(*build_method(items, changes))
    servers = SERVER_RATES if strategy.server != "none" else (None,)
    return [
        {"learning_rate": client} | ({} if server is None else {"server_step.rate": server})
        for client, server in itertools.product(CLIENT_RATES, servers)
    ]
