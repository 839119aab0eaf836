"""The registry: name -> builder. A new algorithm is one file here, one line below, one test."""

from __future__ import annotations

from collections.abc import Callable

from shared.errors import SettingsError
from shared.settings import MethodSettings
from shared.strategies.fedavg import fedavg
from shared.strategies.local import local
from shared.strategies.lpsfed import lpsfed
from shared.strategy import Strategy

STRATEGIES: dict[str, Callable[[MethodSettings], Strategy]] = {
    "lpsfed": lpsfed,
    "fedavg": fedavg,
    "local": local,
}


def build_strategy(name: str, method: MethodSettings) -> Strategy:
    """The named algorithm with the run's settings. Raises SettingsError for an unknown name."""
    if name not in STRATEGIES:
        raise SettingsError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {name!r}")
    return STRATEGIES[name](method)
