"""Real sockets: an app behind the server that both services use, by TLS or not, and certificates of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from simulation.certificates import IssuedCertificate, issue_certificate, make_authority, write_files
from tests.support.serving import HOST, serve

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
