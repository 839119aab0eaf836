"""The aggregator as a process of its own, which can be killed and started again in the same state directory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from simulation.ports import free_ports
from tests.support.gauge import Gauge
from tests.support.serving import HOST
from tests.support.small import SMALL, TOKEN

START_SECONDS = 300.0  # a bound alone: where much else runs a start takes long


@dataclass
class AggregatorProcess:
    """`settings`: those that differ from a small aggregator's; `command`: what the interpreter runs, in which tree."""

    state: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    command: Sequence[str] = ("-m", "aggregator_service")
    tree: Path | None = None
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    log: Path | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def gauge(self) -> Gauge:
        assert self.process is not None
        return Gauge(self.process.pid)

    @contextmanager
    def running(self) -> Iterator[AggregatorProcess]:
        """It listens and is ready; it is killed when the context ends, as a crash would end it."""
        self.start()
        try:
            self._wait_until_ready()
            yield self
        finally:
            self.kill()

    def start(self) -> None:
        (self.port,) = free_ports(1)
        given = {"state_directory": self.state, "operator_token": TOKEN, "port": self.port, "method": SMALL}
        environment = {f"LPSFED_AGGREGATOR_{name.upper()}": _text(v) for name, v in {**given, **self.settings}.items()}
        if self.tree is not None:
            environment["PYTHONPATH"] = str(self.tree)
        command, nowhere = [sys.executable, *self.command], subprocess.DEVNULL
        with self.log.open("ab") if self.log else open(os.devnull, "wb") as told:
            self.process = subprocess.Popen(
                command, env=os.environ | environment, cwd=self.tree, stdin=nowhere, stdout=told, stderr=told
            )

    def kill(self) -> None:
        """SIGKILL: nothing of the process runs any more."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            assert self.process is not None and self.process.poll() is None, "the service has ended"
            assert time.monotonic() < until, "the service is not ready"
            with suppress(httpx.TransportError):  # it does not listen yet
                if httpx.get(f"{self.url}/health/ready", trust_env=False).is_success:
                    return
            time.sleep(0.05)


def _text(value: Any) -> str:
    return value.model_dump_json() if hasattr(value, "model_dump_json") else str(value)
