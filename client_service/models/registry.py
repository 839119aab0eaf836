"""Name of a model -> the model. A new one: a file of its name in encoders/ and a line in shared/method/exchange.py."""

from __future__ import annotations

from importlib import import_module

from client_service.models.model import Builder, Ingredients, Model


def build_model(name: str, given: Ingredients) -> Model:
    """The model that encoders/<name>.py builds; `name` is one of EXCHANGES, as settings and strategies have it."""
    build: Builder = import_module(f"client_service.models.encoders.{name}").build
    return build(given)
