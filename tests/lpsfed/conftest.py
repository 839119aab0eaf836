"""A silo on a real socket that has a model, and whose applications show a key."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from client_service.app import create_app
from client_service.data import Shard
from client_service.settings import ClientSettings, client_settings
from lpsfed import Client, Retrying
from shared.protocol.signing.enrolment import kept_pair
from tests.support.federation import Unreachable
from tests.support.given import Silos
from tests.support.kept import keep_first_model
from tests.support.serving import serve
from tests.support.small import small_client

KEY = "AbCdEfGh0123456789-AbCdEfGh0123456789"


@pytest.fixture
def settings(silos: Silos, tmp_path: Path) -> ClientSettings:
    plain = small_client(silos(1)[0], tmp_path)
    kept_pair(plain.name, plain.state_directory)
    return client_settings(**{**dict(plain), "application_key": KEY})


@pytest.fixture
def shard(settings: ClientSettings) -> Shard:
    return keep_first_model(settings)[0]


@pytest.fixture
def silo(settings: ClientSettings, shard: Shard) -> Iterator[str]:
    """Its address."""
    assert shard.user_ids
    with serve(create_app(settings, Unreachable()), settings) as url, Client(url, KEY) as waiting:
        while waiting.read_model().version is None:
            time.sleep(0.01)
        yield url


@pytest.fixture
def client(silo: str) -> Iterator[Client]:
    with Client(silo, KEY, retrying=Retrying(attempts=1)) as client:
        yield client
