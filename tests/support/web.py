"""Real sockets: an app behind the server that both services use, by TLS or not, and certificates of the test's own."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from client_service.settings import ClientSettings
from shared.protocol.signing.enrolment import ensure_key_pair
from simulation.deployment.certificates import IssuedCertificate, issue_certificate, make_authority, write_files
from tests.support.federation import Unreachable
from tests.support.kept import keep_first_model
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import HOST, serve
from tests.support.small import BEARER, small_aggregator

HOSTS = ("localhost", HOST)
Served = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="session")
def served() -> Served:
    """`with served(app, settings) as url`."""
    return serve


class Papers:
    """A folder of certificates: those of one authority, one of a stranger's, and ones whose time is another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._root = folder, make_authority()
        stranger = make_authority("a stranger")
        write_files(folder, self._root.pem_files("authority") | stranger.pem_files("stranger"))
        self.make("service"), self.make("caller"), self.make("elsewhere", hosts=("other.example",))
        write_files(folder, issue_certificate(stranger, "caller", HOSTS).pem_files("impostor"))

    def make(
        self, name: str, *, hosts: tuple[str, ...] = HOSTS, begun: float = 1.0, days: int = 365
    ) -> IssuedCertificate:
        """A certificate that began so many days ago and is good for so many; one of that name is replaced."""
        made = issue_certificate(self._root, name, hosts, days=days, begins=datetime.now(UTC) - timedelta(days=begun))
        for file, content in made.pem_files(name).items():
            (self.folder / file).write_bytes(content)
        return made

    def crt(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def port(self, name: str = "service", *, mutual: bool = False) -> dict[str, Path]:
        """The settings of a port that shows this certificate, and lets in whom the authority knows."""
        found = {"tls_certificate": self.crt(name), "tls_key": self.key(name)}
        return found | ({"tls_client_authority": self.crt("authority")} if mutual else {})


@pytest.fixture
def papers(tmp_path: Path) -> Papers:
    return Papers(tmp_path / "papers")


@pytest.fixture(scope="module", params=("aggregator", "client"))
def service(
    request: pytest.FixtureRequest,
    shared_settings: Callable[..., ClientSettings],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[str, FastAPI]:
    """Both services, one after the other, by name. The tests of a file share them, and depend on no state of them."""
    if request.param == "client":
        settings = shared_settings()
        ensure_key_pair(settings.name, settings.state_directory)
        keep_first_model(settings)
        return request.param, create_client(settings, Unreachable())
    return request.param, create_aggregator(small_aggregator(tmp_path_factory.mktemp("aggregator")))


@pytest.fixture(scope="module")
def url(service: tuple[str, FastAPI]) -> Iterator[str]:
    name, app = service
    wind_down = app.state.coordinator.wind_down if name == "aggregator" else lambda: None
    with serve(app, wind_down=wind_down) as url:
        if name == "client":
            wait_for_model(url)
        yield url


def wait_for_model(url: str) -> None:
    """Popular items are answered until the kept model is loaded."""
    until = time.monotonic() + LONGEST_SECONDS
    while "version" not in httpx.get(f"{url}/v1/model", headers=BEARER, trust_env=False).json():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="module")
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """With the operator's token, or a silo's key."""
    async with httpx.AsyncClient(base_url=url, trust_env=False, headers=BEARER) as http:
        yield http
