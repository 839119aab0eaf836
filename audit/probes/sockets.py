"""Probes for unix sockets in a part's reach, and for a container engine behind one."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from audit.evidence.evidence import ProbeResult, make_result
from audit.probes.containers import list_places
from audit.probes.expected import is_among
from audit.probes.files import SeenEntry, WalkResult

KIND = "sockets"
SECONDS = 2.0
MOST_ASKED, MOST_KEPT = 16, 1000
HTTP_PING = b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n"
ENGINES = (
    b"docker",
    b"libpod",
    b"api-version",
    b"ostype",
)  # words that show a container engine, in the head of an answer
USUAL_NAMES = (
    "docker.sock",
    "containerd.sock",
    "crio.sock",
    "podman.sock",
)  # names of engine sockets, found even where this part may not connect
# What a client of gRPC begins with, as containerd's and CRI's do: the other side answers with its settings.
GRPC_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
SETTINGS = slice(3, 4), b"\4"


@dataclass
class SocketObserver:
    """Observer of unix sockets, whatever their names.

    No container engine may answer, not even behind an expected socket.
    """

    expected: tuple[str, ...] = ()
    found: list[SeenEntry] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    count: int = 0

    def observe_entry(self, entry: SeenEntry) -> None:
        """Records a socket, and counts it where it is not expected."""
        if not stat.S_ISSOCK(entry.mode):
            return
        unexpected = not is_among(entry.place, self.expected)
        self.count += unexpected
        if len(self.found) < MOST_KEPT:
            self.found.append(entry)
            self.places += [entry.place] * unexpected

    def probe_results(self, seen: WalkResult) -> Iterator[ProbeResult]:
        """Yields the results where the expected contents are known.

        A container of this system has no unexpected socket.
        """
        observed = f"{self.count}: {list_places(self.places)}" if self.places else f"none; {seen.summary}"
        held = seen.is_conclusive and not self.places
        yield make_result(KIND, "of UNIX", "none", observed, held=held)
        yield self.engine_probe()

    def engine_probe(self, kind: str = KIND) -> ProbeResult:
        """Probes whether a container engine answers behind any of the sockets."""
        asked = self.found[:MOST_ASKED]
        there = [one.place for one in asked if one.path.name in USUAL_NAMES or is_engine_socket(one.path)]
        observed = f"at {list_places(there)}" if there else "none"
        return make_result(kind, "a container engine's", "none", observed, held=not there)


def is_engine_socket(path: Path) -> bool:
    """Tells whether an engine's API answers at a socket, by HTTP or by gRPC."""
    by_http = _socket_answer(path, HTTP_PING).lower()
    if by_http.startswith(b"http/") and any(word in by_http for word in ENGINES):
        return True
    part, sign = SETTINGS
    return _socket_answer(path, GRPC_PREFACE)[part] == sign


def _socket_answer(path: Path, asking: bytes) -> bytes:
    """Returns the first bytes of a socket's answer; empty without one."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(SECONDS)
            connection.connect(f"/proc/self/fd/{folder}/{path.name}")  # an address of a socket is 107 bytes at most
            connection.sendall(asking)
            return connection.recv(4096)
    except OSError:
        return b""
    finally:
        os.close(folder)
