"""Flower app of the method: strategies in a ServerApp, silos in a ClientApp."""

from __future__ import annotations

from importlib.util import find_spec

from shared.errors import SettingsError

if find_spec("flwr") is None:
    raise SettingsError("simulation.flower: expected Flower, it is not installed: pip install 'lpsfed[flower]'")
