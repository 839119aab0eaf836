"""Real sockets: an app behind the server that both services use, by TLS or not, and certificates of the test's own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI

from shared.web.listening import Listening
from shared.web.server import build_server
from shared.web.tls import PORT
from simulation.certificates import Issued, authority, issued, write

HOST = "127.0.0.1"
HOSTS = ("localhost", HOST)
Served = Callable[..., AbstractContextManager[str]]


@contextmanager
def serve(
    app: FastAPI, settings: Listening | None = None, wind_down: Callable[[], None] = lambda: None
) -> Iterator[str]:
    """The app in a thread of its own, as `run_server` would serve it; its address."""
    chosen = settings or Listening()
    identities, listening = chosen.identities(), socket.create_server((HOST, 0))
    server = build_server(
        app,
        host=HOST,
        port=listening.getsockname()[1],
        wind_down=wind_down,
        tls=identities[PORT].context if identities else None,
        crowd=chosen.crowd(),
        trusted_proxies=chosen.trusted_proxies,
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(app.router.lifespan_context(app)):
        serving = portal.start_task_soon(server.serve, [listening])
        try:
            yield f"{'https' if identities else 'http'}://{HOST}:{server.config.port}"
        finally:
            server.should_exit = True
            serving.result()


@pytest.fixture(scope="session")
def served() -> Served:
    """`with served(app, settings) as url`."""
    return serve


class Papers:
    """A folder of certificates: those of one authority, one of a stranger's, and ones whose time is another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._root = folder, authority()
        stranger = authority("a stranger")
        write(folder, self._root.files("authority") | stranger.files("stranger"))
        self.make("service"), self.make("caller"), self.make("elsewhere", hosts=("other.example",))
        write(folder, issued(stranger, "caller", HOSTS).files("impostor"))

    def make(self, name: str, *, hosts: tuple[str, ...] = HOSTS, begun: float = 1.0, days: int = 365) -> Issued:
        """A certificate that began so many days ago and is good for so many; one of that name is replaced."""
        made = issued(self._root, name, hosts, days=days, begins=datetime.now(UTC) - timedelta(days=begun))
        for file, content in made.files(name).items():
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
