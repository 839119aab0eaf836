"""Clients of secure rounds that only know numpy and the wire, against the real app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import numpy as np
import pytest

from shared.masked_wire import encode_masked
from shared.secure import agreement, client
from shared.secure.messages import Delivery, Roster, UnmaskRequest
from shared.secure.state import Begun, Ready, Sharing
from shared.strategy import Parameters

if TYPE_CHECKING:
    from conftest import FakeClient, Federation, Running

ROUND = "/v1/runs/run-1/rounds/{number}/clients/{name}"
NAMES = ("ada", "bob", "cyd", "dan", "eve")
RHO = {"ada": 0.3, "bob": 0.9, "cyd": 0.5, "dan": 0.35, "eve": 0.7}


@dataclass
class Masking:
    """One client in one secure round: each method makes one call, and remembers what came of it."""

    fake: FakeClient
    content: Parameters
    threshold: int
    number: int = 1
    begun: Begun | None = None
    sharing: Sharing | None = None
    ready: Ready | None = None
    body: bytes = b""

    @property
    def name(self) -> str:
        return self.fake.name

    def path(self, call: str, name: str = "") -> str:
        return f"{ROUND.format(number=self.number, name=name or self.name)}/{call}"

    async def said(self, call: str, body: bytes, *, at: str = "") -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        return await self.fake.http.put(at or self.path(call), content=body, headers=headers, auth=self.fake.auth)

    async def asked(self, call: str, wait: float = 0.0) -> httpx.Response:
        return await self.fake.get(self.path(call), wait=wait)

    async def keys(self) -> httpx.Response:
        if self.begun is None:
            terms = agreement.terms(self.fake.declaration, "run-1", self.number, self.threshold)
            self.begun, _ = client.begin(terms, self.name)
        return await self.said("keys", client.public_keys(self.begun).model_dump_json().encode())

    async def shares(self) -> httpx.Response:
        if self.sharing is None:
            assert self.begun is not None
            roster = await self.asked("roster")
            assert roster.status_code == 200, roster.text
            self.sharing, _ = client.share(self.begun, Roster.model_validate_json(roster.content))
        return await self.said("shares", self.sharing.message.model_dump_json().encode())

    async def masked(self) -> httpx.Response:
        if not self.body:
            assert self.sharing is not None
            delivery = await self.asked("delivery")
            assert delivery.status_code == 200, delivery.text
            ready = client.take(self.sharing, Delivery.model_validate_json(delivery.content))
            self.ready, update = client.mask(ready, self.content)
            self.body = encode_masked(update)
        return await self.fake.put(self.number, self.body)

    async def answer(self) -> bytes:
        assert self.ready is not None
        request = await self.asked("request")
        assert request.status_code == 200, request.text
        self.ready, message = client.unmask(self.ready, UnmaskRequest.model_validate_json(request.content))
        return message.model_dump_json().encode()

    async def answers(self) -> httpx.Response:
        return await self.said("answers", await self.answer())

    async def standing(self) -> str:
        return str((await self.fake.get("/v1/runs/current")).json()["standing"])


@dataclass
class SecureFederation:
    """The running federation, and its clients in the round at hand."""

    federation: Federation
    clients: dict[str, Masking]

    async def phase(self, phase: str, *names: str) -> None:
        """These clients say what belongs to this phase, all of it taken; by default everybody."""
        for name in names or tuple(self.clients):
            answer = await getattr(self.clients[name], phase)()
            assert answer.is_success, answer.text

    def again(self, federation: Federation) -> SecureFederation:
        """The same clients after a restart of the aggregator."""
        for name, one in self.clients.items():
            one.fake = federation.client(name)
        return SecureFederation(federation, self.clients)

    async def late(self) -> None:
        """The current phase's time is over, and the aggregator has noticed."""
        before = (await self.federation.history())["deadline_at"]
        self.federation.clock.pass_the_deadline()
        await self.moved(before)

    async def moved(self, before: str | None) -> None:

        with anyio.fail_after(20):
            while (await self.federation.history())["deadline_at"] == before:
                await anyio.sleep(0.01)

    def mean(self, *names: str) -> dict[str, np.ndarray[Any, Any]]:
        chosen = [self.clients[name].content.arrays for name in names]
        return {
            name: np.mean([one[name].astype(np.float64) for one in chosen], axis=0).astype(np.float32)
            for name in chosen[0]
        }


Secured = Callable[..., AbstractAsyncContextManager[SecureFederation]]


def content(fake: FakeClient, seed: int) -> Parameters:
    """A trained update: numbers that a search in files can tell from all others."""
    rng = np.random.default_rng(seed)
    arrays = {spec.name: rng.normal(size=spec.shape).astype(np.float32) for spec in fake.declaration.tensors}
    return Parameters(arrays, {"margin": float(rng.uniform(0.1, 1.0)), "rho": RHO[fake.name]})


@pytest.fixture
def secured(running: Running) -> Secured:
    """`async with secured(4, quorum=3) as made`: a run whose first round is open, for so many clients."""

    @asynccontextmanager
    async def run(count: int, *, settings: dict[str, Any] | None = None, **request: Any) -> AsyncIterator[Any]:
        async with running(secure=True, **(settings or {})) as federation:
            fakes = await federation.joined(*NAMES[:count])
            started = await federation.start_run(**({"rounds": 1, "clients": count} | request))
            assert started.status_code == 201, started.text
            threshold = (await fakes[0].get("/v1/runs/current")).json()["threshold"]
            clients = {one.name: Masking(one, content(one, seed), threshold) for seed, one in enumerate(fakes)}
            yield SecureFederation(federation, clients)

    return run
