"""A silo on a real socket that has a model, and whose applications show a key."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client_service.app import create_app
from client_service.data.interactions import Shard
from client_service.settings import ClientSettings, client_settings
from lpsfed import Client, Retrying
from shared.protocol.signing.enrolment import ensure_key_pair
from tests.support.federation import Unreachable
from tests.support.given import Silos
from tests.support.kept import keep_first_model
from tests.support.serving import serve
from tests.support.small import small_client

KEY = "AbCdEfGh0123456789-AbCdEfGh0123456789"


def add_key(plain: ClientSettings) -> ClientSettings:
    """Return the settings with a key for applications; the silo has its signing key."""
    ensure_key_pair(plain.name, plain.state_directory)
    return client_settings(**{**dict(plain), "application_key": KEY})


@contextmanager
def run_silo(settings: ClientSettings) -> Iterator[str]:
    """Serve a silo that has a model at the yielded address."""
    with serve(create_app(settings, Unreachable()), settings) as url, Client(url, KEY) as waiting:
        while waiting.read_model().version is None:
            time.sleep(0.01)
        yield url


@pytest.fixture(scope="module")
def keyed_settings(shared_settings: Callable[..., ClientSettings]) -> ClientSettings:
    """Of the silo that the tests of a file share: they only ask."""
    return add_key(shared_settings())


@pytest.fixture(scope="module")
def shared_shard(keyed_settings: ClientSettings) -> Shard:
    return keep_first_model(keyed_settings)[0]


@pytest.fixture(scope="module")
def shared_silo(keyed_settings: ClientSettings, shared_shard: Shard) -> Iterator[str]:
    assert shared_shard.user_ids
    with run_silo(keyed_settings) as url:
        yield url


@pytest.fixture
def asking(shared_silo: str) -> Iterator[Client]:
    """A client of the shared silo."""
    with Client(shared_silo, KEY, retrying=Retrying(attempts=1)) as client:
        yield client


@pytest.fixture
def settings(silos: Silos, tmp_path: Path) -> ClientSettings:
    return add_key(small_client(silos(1)[0], tmp_path))


@pytest.fixture
def shard(settings: ClientSettings) -> Shard:
    return keep_first_model(settings)[0]


@pytest.fixture
def silo(settings: ClientSettings, shard: Shard) -> Iterator[str]:
    """The address of a silo of the test's own."""
    assert shard.user_ids
    with run_silo(settings) as url:
        yield url


@pytest.fixture
def client(silo: str) -> Iterator[Client]:
    with Client(silo, KEY, retrying=Retrying(attempts=1)) as client:
        yield client
