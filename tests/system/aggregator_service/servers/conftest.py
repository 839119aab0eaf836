"""Real servers: PostgreSQL from this machine's binaries, and one that speaks S3. Tests skip, with a reason, without."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from aggregator_service.rounds import round_loop
from tests.support.cells import print_cells
from tests.support.postgres import PostgresServer, find_binaries, postgres_server
from tests.support.serving import HOST

ENVIRONMENT = "needs the environment that `make storage` makes"
SECRET = "s3cret-of-the-store"
TAKEN_OVER = "taken over"  # the property under which a cell of the kill matrix reports its seconds


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    print_cells(terminalreporter, TAKEN_OVER, "over after a worker was killed, all digests as undisturbed, seconds")


@pytest.fixture(scope="session")
def one_server() -> Iterator[PostgresServer]:
    pytest.importorskip("psycopg", reason=ENVIRONMENT)
    if (binaries := find_binaries()) is None:
        pytest.skip("needs a PostgreSQL server on this machine: apt-get install postgresql")
    with postgres_server(binaries) as server:
        yield server


@dataclass(frozen=True)
class Place:
    """A fresh database on the server."""

    server: PostgresServer
    name: str = field(default_factory=lambda: f"lpsfed_{uuid.uuid4().hex}")

    @property
    def url(self) -> str:
        return self.server.url(self.name)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.server.execute(query, self.name)

    def cut_off(self, condition: str = "true") -> int:
        """End the connections to it for which this holds -> how many there were."""
        query = f"select pg_terminate_backend(pid) from pg_stat_activity where datname = %(name)s and {condition}"
        return len(self.server.execute(query, name=self.name))


@pytest.fixture
def place(one_server: PostgresServer) -> Place:
    made = Place(one_server)
    one_server.execute(f"create database {made.name}")
    return made


@dataclass
class Store:
    """A server that speaks S3, and what lies in the bucket that a test uses."""

    server: Any
    port: int
    url: str

    def names(self) -> set[str]:
        """Of the blobs."""
        return {name for name in self.objects() if name.endswith(".safetensors")}

    def objects(self) -> dict[str, Any]:
        bucket, _, prefix = self.url.removeprefix("s3://").partition("/")
        found = self._bucket(bucket).objects.filter(Prefix=prefix)
        return {each.key.rpartition("/")[2]: each for each in found}

    def make_bucket(self, name: str) -> None:
        self._bucket(name).create()

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        """Again, with all that it held."""
        from moto.server import ThreadedMotoServer

        self.server = ThreadedMotoServer(ip_address=HOST, port=self.port, verbose=False)
        self.server.start()

    def _bucket(self, name: str) -> Any:
        import boto3

        return boto3.resource("s3").Bucket(name)


@pytest.fixture(scope="session")
def one_store() -> Iterator[Store]:
    for module in ("s3fs", "moto.server"):
        pytest.importorskip(module, reason=ENVIRONMENT)
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address=HOST, port=0, verbose=False)
    server.start()
    made = Store(server, server.get_host_and_port()[1], "")
    yield made
    made.stop()


@contextmanager
def at_the_store(one_store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """With a bucket of this caller's own, and the variables by which the service finds it."""
    variables = {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{one_store.port}",
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{uuid.uuid4().hex}"
    one_store.url = f"s3://{bucket}/federations/one"
    one_store.make_bucket(bucket)
    yield one_store


@pytest.fixture
def store(one_store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with at_the_store(one_store, monkeypatch) as found:
        yield found


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service looks again at once whether its disk, its database and its bucket take."""
    monkeypatch.setattr(round_loop, "DISK_RETRY_SECONDS", 0.02)
    monkeypatch.setattr(round_loop, "ROUND_CHECK_SECONDS", 0.02)
