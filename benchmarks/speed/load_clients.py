"""Many clients of one aggregator in one event loop, without training.

They send signed requests, declared updates and long polls, as real clients do, each with its own key.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import httpx
import numpy as np

from client_service.boundary.aggregator_api import CURRENT
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters
from shared.protocol.request_heads import RequestHead
from shared.protocol.schemas import JoinIn, RunOut
from shared.protocol.signing.requests import RequestTarget, Signatory, sign_request
from shared.protocol.wire import MEDIA_TYPE, encode_body

WAIT_SECONDS = 20
PAUSE_SECONDS = 1.0  # after a call that failed
NEVER = -1
JSON = "application/json"
SCALARS = {"margin": 0.1, "rho": 0.1}


@dataclass
class LoadProgress:
    """Progress of all clients; `marks`: times at which the n-th of a kind finished."""

    calls: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    marks: dict[str, list[float]] = field(default_factory=dict)

    def mark(self, what: str) -> None:
        """Records that one client finished."""
        self.marks.setdefault(what, []).append(time.monotonic())


@dataclass
class LoadClient:
    """Client that joins, follows the run, and sends the same tensors in each round."""

    signatory: Signatory
    http: httpx.AsyncClient
    declaration: Declaration
    tensors: Mapping[str, np.ndarray]
    progress: LoadProgress

    async def join(self) -> None:
        """Registers with the aggregator."""
        message = JoinIn(client=self.signatory.name, declaration=self.declaration)
        await self._call("join", "POST", "/v1/clients", message.model_dump_json().encode(), JSON)
        self.progress.mark("join")

    async def follow(self) -> None:
        """Takes part until the run is over."""
        sequence, done = NEVER, 0
        while (state := await self._current(sequence)).phase != "finished":
            if state.phase == "failed":
                raise RuntimeError("expected an active run, the aggregator ended it as failed")
            if state.phase == "open" and state.round > done:
                await self._take_part(state)
                done = state.round
            sequence = state.sequence

    async def _current(self, sequence: int) -> RunOut:
        known = "" if sequence == NEVER else f"&after={sequence}"
        answer = await self._call("current", "GET", f"{CURRENT}?wait={WAIT_SECONDS}{known}")
        return RunOut.model_validate_json(answer.content)

    async def _take_part(self, state: RunOut) -> None:
        number = state.round
        if number == 1:
            await self._call("model", "GET", f"/v1/runs/{state.run}/model")
        await self._call("anchor", "GET", f"/v1/runs/{state.run}/rounds/{number}/anchor")
        own = f"/v1/runs/{state.run}/rounds/{number}/clients/{self.signatory.name}"
        body = await asyncio.to_thread(encode_body, Parameters(dict(self.tensors), SCALARS))
        await self._call("update", "PUT", f"{own}/update", body, MEDIA_TYPE)
        self.progress.mark(f"update {number}")
        while (await self._call("personalized", "GET", f"{own}/personalized?wait={WAIT_SECONDS}")).status_code == 204:
            pass
        self.progress.mark(f"answer {number}")

    async def _call(
        self, name: str, method: str, target: str, body: bytes = b"", media: str | None = None
    ) -> httpx.Response:
        """Repeats a call until it succeeds; failures are counted."""
        while True:
            try:
                answer = await self.http.send(self._request(method, target, body, media))
                problem = "" if answer.is_success else f"{name}: {answer.status_code}"
            except httpx.TransportError as error:
                problem = f"{name}: {type(error).__name__}"
            if not problem:
                self.progress.calls[name] += 1
                return answer
            self.progress.errors[problem] += 1
            await asyncio.sleep(PAUSE_SECONDS)

    def _request(self, method: str, target: str, body: bytes, media: str | None) -> httpx.Request:
        host = self.http.base_url.netloc.decode()
        said = RequestHead(method, target, host, media, len(body) if media else None)
        signed = sign_request(
            RequestTarget.of(method, target.encode()),
            body,
            self.signatory,
            created=int(time.time()),
            nonce=secrets.token_hex(16),
        )
        return httpx.Request(
            method, self.http.base_url.join(target), headers=[*said.headers(), *signed.items()], content=body
        )


def random_tensors(declaration: Declaration) -> dict[str, np.ndarray]:
    """Draws one update's tensors once; the values do not affect times."""
    draw = np.random.default_rng(0)
    return {one.name: draw.standard_normal(one.shape, dtype=np.float32) for one in declaration.tensors}
