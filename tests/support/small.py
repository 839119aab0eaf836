"""Settings of small services: a test names what matters to it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aggregator_service.settings import AggregatorSettings, aggregator_settings
from client_service.settings import ClientSettings, client_settings
from shared.method.settings import AnchorSettings, MethodSettings

TOKEN = "operator-token-of-the-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
AGGREGATOR = "http://aggregator"
GRAPH = AnchorSettings(users=40, items=30, edges=200)
SMALL = MethodSettings(width=4, layers=1, cutoff=12, batch_size=64, negatives=8, anchor=GRAPH)
"""A model that trains in a hundredth of a second; every change of a round shows."""


def small_aggregator(folder: Path, **changes: Any) -> AggregatorSettings:
    """An aggregator whose state lies in `folder`."""
    given: dict[str, Any] = {"state_directory": folder, "operator_token": TOKEN, "method": SMALL}
    return aggregator_settings(**(given | changes))


def small_client(shard: Path, folder: Path, **changes: Any) -> ClientSettings:
    """The client of a shard, named for the shard's folder; its state lies in a folder of that name in `folder`."""
    place: dict[str, Any] = {"name": shard.name, "shard": shard, "state_directory": folder / shard.name}
    limits = {"aggregator_url": AGGREGATOR, "method": SMALL, "device": "cpu", "wait_seconds": 5.0}
    return client_settings(**(place | limits | changes))
