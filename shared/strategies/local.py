"""Local-only training, the baseline of a federation: nothing leaves a client."""

from __future__ import annotations

from shared.errors import SettingsError
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.strategy import OwnSettings, Strategy, read_strategy_settings, share_nothing


class LocalSettings(OwnSettings):
    """Settings of local training.

    send: false: no run trains; each silo makes its model of the federation's sums, with train = false.
    """

    train: bool = True
    send: bool = True


def fit_alone(client: LocalClient, received: Parameters) -> Parameters:
    """Trains as LPSFed does, with the local margin alone, and sends nothing."""
    client.load(received)
    client.train(Objective(bias_aware=True))
    return Parameters({})


def local(method: MethodSettings) -> Strategy:
    """Builds local training; raises SettingsError if only train or send is off."""
    settings = read_strategy_settings(LocalSettings, method)
    if settings.train != settings.send:
        words = "expected both or neither of strategy.train and strategy.send"
        raise SettingsError(f"strategy: {words}, got {settings.train} and {settings.send}")
    if not settings.send:
        return Strategy("local", shared=share_nothing, settings=settings, enough_rounds=1, sums_alone=True)
    return Strategy("local", shared=share_nothing, fit=fit_alone, settings=settings)
