"""Name of a model -> the model. A new one is a file of its name in encoders/ and a line in shared/method/exchange."""

from __future__ import annotations

from importlib import import_module

from client_service.models.model import Builder, Ingredients, Model
from shared.errors import SettingsError
from shared.method.exchange import EXCHANGES


def build_model(name: str, given: Ingredients) -> Model:
    """The model that encoders/<name>.py builds. SettingsError for a name that is not in EXCHANGES."""
    if name not in EXCHANGES:
        raise SettingsError(f"model: expected one of {', '.join(EXCHANGES)}, got {name!r}")
    build: Builder = import_module(f"client_service.models.encoders.{name}").build
    return build(given)
