"""The clients' settings of differential privacy in a simulation, held against the run that they are to pay for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from client_service.privacy.accounting import planned_epsilon
from client_service.privacy.settings import PrivacySettings
from shared.errors import SettingsError
from shared.method.settings import MethodSettings, validate_settings
from shared.strategies import build_strategy


def parse_privacy(words: Mapping[str, str]) -> dict[str, Any]:
    """{'mechanism': 'gaussian', 'rho_range': '0,0.02', ...} -> values for the settings: a range is two numbers."""
    return {name: text.split(",") if name.endswith("_range") else text for name, text in words.items()}


def require_affordable(privacy: Mapping[str, Any], name: str, method: MethodSettings, rounds: int) -> None:
    """SettingsError where the budget ends before the run: every client would stop, and the run would wait for them."""
    settings, strategy = validate_settings(PrivacySettings, dict(privacy)), build_strategy(name, method)
    if settings.budget is None or strategy.shares_items(method):  # the clients refuse the latter, and say why
        return
    fresh = method.anchor.every_round or method.signal != "eigenvalues"  # then each round has another rho
    needed = planned_epsilon(settings, strategy.scalars, rounds, anchors=rounds if fresh else 1)
    if needed > settings.budget:
        raise SettingsError(
            f"privacy.budget: expected {needed:.4g} or more for {rounds} rounds of {name}, got {settings.budget:g}"
        )
