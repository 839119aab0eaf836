"""The aggregator as a process of its own that somebody abuses: what it takes of the machine, and who is answered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from shared.method.settings import MethodSettings
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import PrivateKey, new_key, public_pem
from shared.protocol.wire import MEDIA_TYPE
from tests.support.process import AggregatorProcess
from tests.support.questions import LONGEST_SECONDS
from tests.support.signing import Signing
from tests.support.small import BEARER, SMALL, small_aggregator

MOST_MEBIBYTES = 100.0  # above the idle size, whatever is done to it
# The service with a clock that a file moves: it holds so many seconds.
PROGRAM = """
import pathlib, sys, time
true, moved = time.time, pathlib.Path(sys.argv[1])
time.time = lambda: true() + float(moved.read_text())
from aggregator_service.__main__ import main
sys.exit(main())
"""


class Besieged(AggregatorProcess):
    """`told`: settings that differ from the defaults, by name; `tree`: the folder of another version's code."""

    def __init__(
        self,
        folder: Path,
        told: dict[str, Any] | None = None,
        *,
        method: MethodSettings = SMALL,
        tree: Path | None = None,
    ) -> None:
        changes = {"method": method, **(told or {})}
        super().__init__(folder / "state", changes, ("-c", PROGRAM, str(folder / "clock")), tree)
        known = {name: value for name, value in changes.items() if name in ("strategy", "secure", "method")}
        self.declaration = small_aggregator(self.state, **known).declaration()
        self.folder, self.method, self.keys = folder, method, dict[str, PrivateKey]()

    @contextmanager
    def running(self) -> Iterator[Besieged]:
        """It listens and is ready; it is killed when the context ends. Entering it again is a restart."""
        self.state.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "clock").exists():
            self.set_clock(0.0)
        with super().running():
            yield self

    def set_clock(self, ahead: float) -> None:
        """Move its clock, not the callers'."""
        (self.folder / "clock").write_text(f"{ahead}")

    def signing(self, name: str, **how: Any) -> Signing:
        """A registered client."""
        if name not in self.keys:
            self.keys[name] = new_key()
            file = public_file(name, self.state / "keys")
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
        return httpx.post(f"{self.url}/v1/runs", json=content, headers=BEARER)

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
        return httpx.get(f"{self.url}/v1/runs/current", params={"wait": "0"}, auth=who, timeout=LONGEST_SECONDS)

    @property
    def peak(self) -> float:
        """The most MiB that it has held since `forget_peak`."""
        return self.gauge.peak()

    def forget_peak(self) -> float:
        """Begin to look for a peak anew -> what it holds now."""
        return self.gauge.forget_peak()
