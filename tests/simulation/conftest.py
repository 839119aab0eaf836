"""Simulations that do not take long."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def hurry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one process tables settle in a few steps, and nothing waits for a disk: no test here is about either."""
    if request.node.get_closest_marker("processes") is None:
        monkeypatch.setattr("client_service.learning.margins.TABLE_STEPS", 10)
        monkeypatch.setattr("os.fsync", lambda _: None)
