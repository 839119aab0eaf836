"""Clients of secure rounds that only know numpy and the wire, against the real app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import httpx
import numpy as np
import pytest

from shared.message import Message
from shared.method.parameters import Parameters
from shared.protocol.masked_wire import encode_masked
from shared.protocol.schemas import RunOut
from shared.protocol.secure import client
from shared.protocol.secure.common import digest_anchor, digest_method, digest_start
from shared.protocol.secure.messages import (
    CommonTerms,
    Consent,
    Consents,
    Delivery,
    Roster,
    RoundTerms,
    Sharers,
    UnmaskRequest,
)
from shared.protocol.secure.proofs import identity_key
from shared.protocol.secure.state import BegunState, CheckedState, ReadyState, SharingState
from shared.protocol.secure.tags import PairKeys
from shared.protocol.signing.keys import PrivateKey, raw_hex
from shared.protocol.wire import decode_body
from shared.strategies.lpsfed import make_mixing
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import FakeClient, Federation, Running

ROUND = "/v1/runs/{run}/rounds/{number}/clients/{name}"
M = TypeVar("M", bound=Message)
PHASES = ("keys", "shares", "checks", "masked", "consents", "answers")
NAMES = ("ada", "bob", "cyd", "dan", "eve")
RHO = {"ada": 0.3, "bob": 0.9, "cyd": 0.5, "dan": 0.35, "eve": 0.7}


@dataclass
class Masking:
    """One client in one secure round: each method makes one call, and remembers what came of it."""

    fake: FakeClient
    content: Parameters
    federation: Federation
    number: int = 1
    begun: BegunState | None = None
    sharing: SharingState | None = None
    checked: CheckedState | None = None
    ready: ReadyState | None = None
    consent: Consent | None = None
    body: bytes = b""

    @property
    def name(self) -> str:
        return self.fake.name

    @property
    def identity(self) -> PrivateKey:
        return self.fake.auth.key

    @cached_property
    def pairs(self) -> PairKeys:
        return PairKeys(self.identity)

    def next_round(self) -> None:
        """Forget the round that is over."""
        self.number += 1
        self.begun = self.sharing = self.checked = self.ready = self.consent = None
        self.body = b""

    def path(self, call: str, name: str = "") -> str:
        return f"{ROUND.format(run=self.fake.run, number=self.number, name=name or self.name)}/{call}"

    async def said(self, call: str, body: bytes, *, at: str = "") -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        return await self.fake.http.put(at or self.path(call), content=body, headers=headers, auth=self.fake.auth)

    async def asked(self, call: str, wait: float = 0.0) -> httpx.Response:
        return await self.fake.get(self.path(call), wait=wait)

    async def given(self, call: str) -> httpx.Response:
        """What the aggregator answers, as soon as it does: a phase ends beside the request that ends it."""
        with anyio.fail_after(LONGEST_SECONDS):
            while (answer := await self.asked(call)).status_code == 204:
                await anyio.sleep(0.01)
        return answer

    async def expected(self, call: str, kind: type[M]) -> M:
        answer = await self.given(call)
        assert answer.status_code == 200, answer.text
        return kind.model_validate_json(answer.content)

    async def terms(self) -> RoundTerms:
        """What this client takes the round to be held on, from what it was told."""
        run = RunOut.model_validate_json((await self.fake.get("/v1/runs/current")).content)
        before = f"/v1/runs/{self.fake.run}/rounds/{self.number - 1}/clients/{self.name}/personalized"
        given = await self.fake.get(f"/v1/runs/{self.fake.run}/model" if self.number == 1 else before)
        assert run.method is not None and run.threshold is not None and given.status_code == 200
        key = self.federation.app.state.coordinator.signing_key
        common = CommonTerms(
            aggregator=raw_hex(key.public_key()),
            start=digest_start(make_mixing(0.0).drop_server_scalars(decode_body(given.content)[1])),
            method=digest_method(run.method),
            seed=run.seed,
            rounds=run.rounds,
            anchor=digest_anchor(run.method, seed=run.seed, number=self.number),
            changing_members=run.changing_members,
            graph=run.graph,
        )
        place = {"run": self.fake.run, "round": self.number, "threshold": run.threshold}
        return RoundTerms(**place, declaration=self.fake.declaration, common=common)

    async def keys(self, **flags: bool) -> httpx.Response:
        if self.begun is None:
            self.begun = client.begin_secure_round(await self.terms(), self.name, self.identity, **flags)
        return await self.said("keys", self.begun.message.model_dump_json().encode())

    async def shares(self) -> httpx.Response:
        if self.sharing is None:
            assert self.begun is not None
            roster = await self.expected("roster", Roster)
            members = {one.client: identity_key(one.identity) for one in roster.members}
            policy = self.federation.settings.colluders
            self.sharing = client.share_secrets(self.begun, roster, members, self.identity, colluders=policy)
        return await self.said("shares", self.sharing.message.model_dump_json().encode())

    async def checks(self) -> httpx.Response:
        if self.checked is None:
            assert self.sharing is not None
            delivery = await self.expected("delivery", Delivery)
            self.checked = client.check_shares(self.sharing, delivery, self.identity, self.pairs)
        return await self.said("checks", self.checked.message.model_dump_json().encode())

    async def masked(self) -> httpx.Response:
        if not self.body:
            assert self.checked is not None
            sharers = await self.expected("sharers", Sharers)
            self.ready, update = client.mask_update(self.checked, sharers, self.content, self.identity, self.pairs)
            self.body = encode_masked(update)
        return await self.fake.put(self.number, self.body)

    async def consents(self) -> httpx.Response:
        if self.consent is None:
            assert self.ready is not None
            request = await self.expected("request", UnmaskRequest)
            self.ready, self.consent = client.sign_consent(self.ready, request, self.identity, self.pairs)
        return await self.said("consents", self.consent.model_dump_json().encode())

    async def answer(self) -> bytes:
        return self._unmask(await self.expected("signatures", Consents))

    async def answers(self) -> httpx.Response:
        """Its answer's status; that of its question where others' answers have ended the round meanwhile."""
        given = await self.given("signatures")
        if given.status_code == 409:
            return given
        return await self.said("answers", self._unmask(Consents.model_validate_json(given.content)))

    def _unmask(self, consents: Consents) -> bytes:
        assert self.ready is not None
        return client.answer_unmask_request(self.ready, consents, self.pairs).model_dump_json().encode()

    async def standing(self) -> str:
        return str((await self.fake.get("/v1/runs/current")).json()["standing"])


@dataclass
class SecureFederation:
    """The running federation, and its clients in the round at hand."""

    federation: Federation
    clients: dict[str, Masking]

    async def until(self, phase: str, *names: str) -> None:
        """All phases before this one; by default by everybody."""
        for one in PHASES[: PHASES.index(phase)]:
            await self.phase(one, *names)

    async def phase(self, phase: str, *names: str) -> None:
        """These clients say what belongs to this phase, all of it taken; by default everybody."""
        for name in names or tuple(self.clients):
            answer = await getattr(self.clients[name], phase)()
            enough = phase == "answers" and answer.status_code == 409  # there were as many as the threshold
            assert answer.is_success or enough, answer.text

    def again(self, federation: Federation) -> SecureFederation:
        """The same clients after a restart of the aggregator."""
        for name, one in self.clients.items():
            one.fake, one.federation = federation.client(name), federation
        return SecureFederation(federation, self.clients)

    async def late(self) -> None:
        """The current phase's time is over, and the aggregator has noticed: its clients are told of the next phase."""
        before = self.deadline()
        self.federation.clock.pass_the_deadline()
        with anyio.fail_after(LONGEST_SECONDS):
            while self.deadline() == before:
                await anyio.sleep(0.01)

    def deadline(self) -> float | None:
        """As clients are told it; a moment after the history, which is read from the disk."""
        run = self.federation.app.state.coordinator.federation.round_loop.run
        return None if run is None or not run.active else run.deadline

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
    return Parameters(arrays, {"margin": float(rng.uniform(0.1, 1.0)), "rho": RHO.get(fake.name, 0.5)})


@pytest.fixture
def secured(running: Running) -> Secured:
    """`async with secured(4, quorum=3) as made`: a run whose first round is open, for so many clients."""

    @asynccontextmanager
    async def run(count: int, *, settings: dict[str, Any] | None = None, **request: Any) -> AsyncIterator[Any]:
        async with running(secure=True, **(settings or {})) as federation:
            names = NAMES[:count] if count <= len(NAMES) else [f"silo-{number:03d}" for number in range(count)]
            fakes = await federation.joined(*names)
            started = await federation.start_run(**({"rounds": 1, "clients": count} | request))
            assert started.status_code == 201, started.text
            clients = {one.name: Masking(one, content(one, seed), federation) for seed, one in enumerate(fakes)}
            yield SecureFederation(federation, clients)

    return run
