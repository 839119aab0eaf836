"""The aggregator as a process of its own that somebody abuses: what it takes of the machine, and who is answered."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from aggregator_service.settings import aggregator_settings
from shared.method.declaration import Declaration
from shared.method.settings import AnchorSettings, MethodSettings
from shared.protocol.heads import CONSTANT
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import PrivateKey, new_key, public_pem
from shared.protocol.signing.messages import NONCE_BYTES, Signatory, Target, sign
from shared.protocol.wire import MEDIA_TYPE

HOST, TOKEN = "127.0.0.1", "0123456789-token-of-the-attacks"
MOST_MEBIBYTES = 100.0  # above the idle size, whatever is done to it
METHOD = MethodSettings(width=4, layers=1, cutoff=12, anchor=AnchorSettings(users=40, items=30, edges=200))
LONGEST_SECONDS = 60.0  # a bound alone
# The service with a clock that a file moves: it holds so many seconds.
PROGRAM = """
import pathlib, sys, time
true, moved = time.time, pathlib.Path(sys.argv[1])
time.time = lambda: true() + float(moved.read_text())
from aggregator_service.__main__ import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Signing(httpx.Auth):
    """Signs each request as its client would, by a clock that is so many seconds ahead. `body`: of this one."""

    name: str
    key: PrivateKey
    ahead: float = 0.0
    body: bytes | None = None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        body = request.read() if self.body is None else self.body
        request.headers.update(self.headers(request.method, request.url.raw_path, body))
        yield request

    def headers(self, method: str, raw: bytes, body: bytes) -> dict[str, str]:
        created, nonce = int(time.time() + self.ahead), secrets.token_hex(NONCE_BYTES)
        signed = sign(Target.of(method, raw), body, Signatory(self.name, self.key), created=created, nonce=nonce)
        return CONSTANT | signed


@dataclass
class Besieged:
    """`told`: settings that differ from the defaults, by name; `tree`: the folder of another version's code."""

    folder: Path
    told: dict[str, Any] = field(default_factory=dict)
    method: MethodSettings = METHOD
    keys: dict[str, PrivateKey] = field(default_factory=dict)
    tree: Path | None = None
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def declaration(self) -> Declaration:
        known = {name: value for name, value in self.told.items() if name in ("strategy", "secure")}
        settings = aggregator_settings(state_directory=self.folder, operator_token=TOKEN, method=self.method, **known)
        return settings.declaration()

    @contextmanager
    def running(self) -> Iterator[Besieged]:
        """It listens and is ready; it is killed when the context ends. Entering it again is a restart."""
        self._start()
        try:
            self._ready()
            yield self
        finally:
            assert self.process is not None
            self.process.kill()
            self.process.wait()

    def set_clock(self, ahead: float) -> None:
        """Move its clock, not the callers'."""
        (self.folder / "clock").write_text(f"{ahead}")

    def _start(self) -> None:
        with socket.create_server((HOST, 0)) as free:
            self.port = free.getsockname()[1]
        (self.folder / "state").mkdir(parents=True, exist_ok=True)
        if not (self.folder / "clock").exists():
            self.set_clock(0.0)
        told = {"state_directory": self.folder / "state", "operator_token": TOKEN, "port": self.port}
        told |= {"method": self.method.model_dump_json()} | self.told
        environment = {f"LPSFED_AGGREGATOR_{name.upper()}": str(value) for name, value in told.items()}
        if self.tree is not None:
            environment["PYTHONPATH"] = str(self.tree)
        command = [sys.executable, "-c", PROGRAM, str(self.folder / "clock")]
        nowhere = subprocess.DEVNULL
        given = os.environ | environment
        self.process = subprocess.Popen(command, env=given, cwd=self.tree, stdout=nowhere, stderr=nowhere)

    def _ready(self) -> None:
        until = time.monotonic() + LONGEST_SECONDS
        while True:
            assert self.process is not None and self.process.poll() is None, "the service has ended"
            assert time.monotonic() < until, "the service is not ready"
            try:
                if httpx.get(f"{self.url}/health/ready").is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.05)  # it does not listen yet

    def signing(self, name: str, **how: Any) -> Signing:
        """A registered client."""
        if name not in self.keys:
            self.keys[name] = new_key()
            file = public_file(name, self.folder / "state" / "keys")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(public_pem(self.keys[name].public_key()))
        return Signing(name, self.keys[name], **how)

    def join(self, *names: str) -> None:
        for name in names:
            message = {"client": name, "declaration": self.declaration.model_dump(mode="json")}
            answer = httpx.post(f"{self.url}/v1/clients", json=message, auth=self.signing(name))
            assert answer.is_success, answer.text

    def start_run(self, **request: Any) -> httpx.Response:
        content = {"method": self.method.model_dump(mode="json")} | request
        return httpx.post(f"{self.url}/v1/runs", json=content, headers={"Authorization": f"Bearer {TOKEN}"})

    def put(self, name: str, call: str, body: bytes, *, number: int = 1, kind: str = "application/json") -> Any:
        path = f"/v1/runs/run-1/rounds/{number}/clients/{name}/{call}"
        kind = MEDIA_TYPE if call == "update" else kind
        return httpx.put(f"{self.url}{path}", content=body, headers={"Content-Type": kind}, auth=self.signing(name))

    def is_answered(self, name: str, **how: Any) -> bool:
        """Does an honest client get its answer, as if nobody else called?"""
        return self._current(name, **how).status_code == 200

    def sequence(self, name: str) -> int:
        """Where the federation stands; who knows it waits for the next change."""
        return int(self._current(name).json()["sequence"])

    def _current(self, name: str, **how: Any) -> httpx.Response:
        who = self.signing(name, **how)
        return httpx.get(f"{self.url}/v1/runs/current", params={"wait": "0"}, auth=who, timeout=10.0)

    @property
    def resident(self) -> float:
        """MiB that it holds now."""
        return self._status("VmRSS")

    @property
    def peak(self) -> float:
        """The most MiB that it has held since `forget_peak`."""
        return self._status("VmHWM")

    def forget_peak(self) -> float:
        """Begin to look for a peak anew -> what it holds now."""
        assert self.process is not None
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.resident

    def _status(self, field: str) -> float:
        assert self.process is not None
        text = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        found = re.search(rf"^{field}:\s+(\d+) kB$", text, re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1024
