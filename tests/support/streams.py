"""An aggregator on a real socket, and a client's own calls to it through the gate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from fastapi import FastAPI

from aggregator_service.app import create_app
from aggregator_service.coordinator import Coordinator
from aggregator_service.settings import AggregatorSettings
from client_service.boundary.aggregator_api import Aggregator, connect
from client_service.boundary.gate import Boundary
from client_service.boundary.ledger import Ledger
from shared.protocol.schemas import RunOut
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import PrivateKey, PublicKey, new_key, public_pem, raw_hex
from shared.timeouts import CallLimits
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import serve
from tests.support.small import BEARER, small_aggregator

KEYS: dict[str, PrivateKey] = {}  # of the clients of the last federation
LIMITS = CallLimits(timeout=5.0, wait=2.0, call=20.0, poll=0.0)


@dataclass
class ServedFederation:
    """The aggregator, as a silo and its operator see it."""

    url: str
    app: FastAPI
    settings: AggregatorSettings
    folder: Path
    keys: dict[str, PrivateKey] = field(default_factory=lambda: KEYS)

    @property
    def coordinator(self) -> Coordinator:
        found: Coordinator = self.app.state.coordinator
        return found

    def trusted_key(self, name: str) -> PublicKey:
        key = self.coordinator.federation.key.public_key()
        assert name == raw_hex(key), "the answer is another aggregator's"
        return key

    @asynccontextmanager
    async def connected(
        self, name: str, key: PrivateKey | None = None, *, url: str | None = None, limits: CallLimits = LIMITS
    ) -> AsyncIterator[Aggregator]:
        """A client with its ledger, which has not joined; url: of a relay before the aggregator."""
        own = self.keys[name] = key or new_key()
        registered = public_file(name, self.settings.registry)
        registered.parent.mkdir(parents=True, exist_ok=True)
        registered.write_bytes(public_pem(own.public_key()))
        boundary = Boundary(name, httpx.URL(url or self.url), self.settings.declaration(), False, 1 << 20)
        ledger = Ledger(self.folder / f"{name}.jsonl")
        inner = httpx.AsyncHTTPTransport(trust_env=False)
        async with connect(boundary, ledger, own, limits=limits, inner=inner, trusted_key=self.trusted_key) as link:
            yield link

    async def joined(self, link: Aggregator) -> RunOut:
        """Joins, and asks for the present state."""
        await link.join(self.settings.declaration(), None)
        return await link.fetch_run(None, 0.0)

    async def operate(self, method: str, path: str, **options: object) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=LONGEST_SECONDS) as http:
            answer = await http.request(method, self.url + path, headers=BEARER, **options)  # type: ignore[arg-type]
        assert answer.is_success, answer.text
        return answer

    async def start_run(self, clients: int = 1, rounds: int = 2) -> None:
        method = self.settings.method.model_dump(mode="json")
        message = {"clients": clients, "rounds": rounds, "method": method}
        await self.operate("POST", "/v1/runs", json=message)

    async def cancel_run(self, name: str = "run-1") -> None:
        await self.operate("DELETE", f"/v1/runs/{name}")


@contextmanager
def serve_federation(folder: Path, **overrides: object) -> Iterator[ServedFederation]:
    """Serves an aggregator with its state in `folder`; a second time is a restart."""
    settings = small_aggregator(folder / "state", **overrides)
    app = create_app(settings)
    with serve(app, settings, wind_down=app.state.coordinator.wind_down) as url:
        yield ServedFederation(url, app, settings, folder)
