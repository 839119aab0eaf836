"""A PostgreSQL server of a test's own, from this machine's binaries: on loopback, in a folder that goes with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulation.ports import free_ports
from tests.support.serving import HOST

USER, PASSWORD = "lpsfed", "s3cret-of-postgres"
ACCOUNT = "postgres"  # the server refuses root
START_SECONDS = 300.0


def find_binaries() -> Path | None:
    """The folder of initdb and pg_ctl; None where there is no server."""
    found = shutil.which("pg_ctl")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


@dataclass(frozen=True)
class PostgresServer:
    """It runs for as long as `postgres_server` is entered; `stop` and `start` are a failure and its end."""

    binaries: Path
    folder: Path
    port: int

    def url(self, database: str, *, password: str = PASSWORD) -> str:
        return f"postgresql+psycopg://{USER}:{password}@{HOST}:{self.port}/{database}"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses={HOST} -c unix_socket_directories={self.folder} -c fsync=off"
        self._run("pg_ctl", "start", "-w", "-s", "-D", "data", "-l", "log", "-o", options)

    def stop(self) -> None:
        """As a crash would end it: nobody who is connected is waited for."""
        self._run("pg_ctl", "stop", "-w", "-s", "-D", "data", "-m", "immediate")

    def execute(self, statement: str, database: str = "postgres", **values: object) -> list[tuple[Any, ...]]:
        """One statement as the owner of the server, with its rows."""
        import psycopg

        place = {"host": HOST, "port": self.port, "user": USER, "password": PASSWORD, "dbname": database}
        with psycopg.connect(**place, autocommit=True) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    def initialise(self) -> None:
        """Names are ordered by a language's rules unless a column says otherwise, as servers often have it."""
        (self.folder / "password").write_text(PASSWORD, encoding="ascii")
        asked = ["-D", "data", "-U", USER, "-A", "scram-sha-256", "--pwfile=password", "-E", "UTF8", "--no-sync"]
        self._run("initdb", *asked, "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en")

    def _run(self, program: str, *arguments: str) -> None:
        account = ACCOUNT if os.getuid() == 0 else None
        command, nowhere = [str(self.binaries / program), *arguments], subprocess.DEVNULL
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        with (self.folder / "told").open("wb") as told:  # a pipe would stay open for as long as the server runs
            done = subprocess.run(
                command, cwd=self.folder, user=account, env=environment, stdin=nowhere, stdout=told, stderr=told,
                timeout=START_SECONDS,
            )  # fmt: skip
        assert done.returncode == 0, (self.folder / "told").read_text(encoding="utf-8")


@contextmanager
def postgres_server(binaries: Path) -> Iterator[PostgresServer]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if os.getuid() == 0:
            shutil.chown(folder, ACCOUNT)
        server = PostgresServer(binaries, Path(folder), free_ports(1)[0])
        server.initialise()
        server.start()
        try:
            yield server
        finally:
            server.stop()
