"""An aggregator that does as it likes, against genuine client services.

It speaks the wire as the true one does and signs its answers with its own key, which the clients have pinned. It holds
all messages and vectors that it is sent; what it tells each client is up to the test.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
from pydantic import BaseModel

from shared.method.anchor import declared_size, draw_anchor
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.method.tensors import Tensor, initial_parameters
from shared.protocol.masked_wire import decode_masked
from shared.protocol.schemas import AnchorOut, GraphBounds, JoinOut, ReceiptOut, RunOut
from shared.protocol.secure import server
from shared.protocol.secure.common import digest_anchor, digest_method, digest_start
from shared.protocol.secure.messages import (
    CommonTerms,
    Consent,
    PublicKeys,
    RoundTerms,
    SealedShares,
    ShareCheck,
    UnmaskAnswer,
)
from shared.protocol.secure.server import PHASES, SecureRound
from shared.protocol.signing.keys import PrivateKey, raw_hex
from shared.protocol.signing.responses import sign_answer
from shared.protocol.wire import MEDIA_TYPE, decode_body, encode_body
from shared.strategies import build_strategy

JSON = "application/json"
OWN = re.compile(r"/v1/runs/(?P<run>run-[0-9]+)/rounds/(?P<round>[0-9]+)/(?:clients/(?P<client>[^/]+)/)?(?P<call>\w+)")
MESSAGES = {
    "keys": PublicKeys,
    "shares": SealedShares,
    "checks": ShareCheck,
    "consents": Consent,
    "answers": UnmaskAnswer,
}
PASSED = {
    "roster": ("keys", lambda state, _: server.make_roster(state)),
    "delivery": ("shares", server.make_delivery),
    "sharers": ("checks", server.make_sharers),
    "request": ("masked", lambda state, _: server.make_unmask_request(state)),
    "signatures": ("consents", server.make_consents),
}


@dataclass
class Liar:
    """One run. `expected`: whom a phase waits for. What it tells whom, a subclass says.

    means: what it has uncovered, one an exchange; uploads: every update that it can read, by client and round.
    """

    declaration: Declaration
    method: MethodSettings
    key: PrivateKey
    expected: frozenset[str]
    rounds: int = 1
    seed: int = 0
    threshold: int = 3
    run: str = "run-1"
    number: int = 1
    phase: str = "open"
    sequence: int = 1
    means: list[Parameters] = field(default_factory=list)
    uploads: dict[tuple[str, int], Parameters] = field(default_factory=dict)
    kernel: Callable[[int], Any] | None = None
    rhobars: Mapping[str, float] = field(default_factory=dict)  # by client, where it is not a half, or the floor
    exchange: SecureRound | None = None
    vectors: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    uncovered: bool = False  # the sum of the exchange at hand
    done: dict[int, Parameters] = field(default_factory=dict)  # what each round gave
    bounds: GraphBounds | None = None  # what it announces of the graph of neighbours

    def __post_init__(self) -> None:
        if self.declaration.secure:
            self.open_exchange()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return build_strategy(self.declaration.strategy, self.method).tensors(self.method)

    @property
    def start(self) -> Parameters:
        return Parameters(initial_parameters(self.tensors, self.seed, exact=self.method.start == "exact"))

    def open_exchange(self, *, threshold: int | None = None, expected: Collection[str] | None = None) -> None:
        """A new exchange for the round at hand, whatever there was of it before."""
        self.threshold = threshold or self.threshold
        self.expected = frozenset(expected or self.expected)
        given = self.done.get(self.number - 1, self.start)
        common = CommonTerms(
            aggregator=raw_hex(self.key.public_key()),
            start=digest_start(given),
            method=digest_method(self.method),
            seed=self.seed,
            rounds=self.rounds,
            anchor=digest_anchor(self.method, seed=self.seed, number=self.number),
            graph=self.bounds,
        )
        place = {"run": self.run, "round": self.number, "threshold": self.threshold}
        self.exchange = SecureRound(terms=RoundTerms(**place, declaration=self.declaration, common=common))
        self.vectors, self.phase, self.uncovered = {}, "open", False
        self.sequence += 1

    def begin_next_round(self) -> None:
        """It begins with the last mean."""
        self.done[self.number] = self.next_start()
        self.number += 1
        self.open_exchange()

    def next_start(self) -> Parameters:
        return self.means[-1]

    def told(self, client: str) -> RunOut:
        """Where the federation stands, as it says."""
        standing = "expected" if client in self.expected and self.number not in self.done else "absent"
        return RunOut(
            sequence=self.sequence,
            run=self.run,
            phase=self.phase,  # type: ignore[arg-type]
            round=self.number,
            rounds=self.rounds,
            seed=self.seed,
            deadline_seconds=3600.0,
            standing=standing,  # type: ignore[arg-type]
            joined=len(self.expected),
            threshold=self.threshold if self.declaration.secure else None,
            graph=self.bounds,
            method=self.method,
        )

    def transport(self, client: str) -> httpx.AsyncBaseTransport:
        """One client's way to it."""
        return _Way(self, client)

    def answer(self, client: str, request: httpx.Request, body: bytes) -> tuple[int, bytes, str]:
        """Status, content and kind of an answer."""
        path = request.url.path
        if path == "/v1/clients":
            return _say(JoinOut(client=client, clients=len(self.expected)))
        if path == "/v1/runs/current":
            return _say(self.told(client))
        if path.endswith("/model"):
            return 200, encode_body(self.start), MEDIA_TYPE
        found = OWN.fullmatch(path)
        assert found is not None, path
        number, call = int(found["round"]), found["call"]
        if call == "anchor":
            return _say(self._anchor(number))
        if call == "personalized":
            return self._personalised(client, number)
        if request.method == "PUT":
            return self._taken(client, number, call, body)
        return self._passed_on(client, call)

    def _anchor(self, number: int) -> AnchorOut:
        drawn = draw_anchor(self.method, declared_size(self.method.anchor), seed=self.seed, number=number)
        kernel = drawn if self.kernel is None else self.kernel(number)
        return AnchorOut(run=self.run, round=number, kernel=tuple(kernel), source="declared")

    def _personalised(self, client: str, number: int) -> tuple[int, bytes, str]:
        again = len(self.means) > 0 and not self.uncovered and number not in self.done  # before, clients wait for it
        if self.phase == "failed" or (again and client in self.expected):
            problem = {"title": "Conflict", "status": 409, "code": "conflict", "detail": f"{self.run} has failed"}
            return 409, json.dumps(problem).encode(), "application/problem+json"
        if number not in self.done:
            return 204, b"", JSON
        given = self.done[number]
        near = self.rhobars.get(client, max(0.5, self.method.similarity_floor or 0.0))
        scalars = {**given.scalars, "rhobar": near} if self.declaration.secure else given.scalars
        return 200, encode_body(Parameters(given.arrays, scalars)), MEDIA_TYPE

    def _taken(self, client: str, number: int, call: str, body: bytes) -> tuple[int, bytes, str]:
        receipt = ReceiptOut(
            run=self.run,
            round=number,
            client=client,
            digest=hashlib.sha256(body).hexdigest(),
            size=len(body),
            received_at="2026-01-01T00:00:00+00:00",
        )
        if call != "update":
            self._accept(MESSAGES[call].model_validate_json(body))
            return 204, b"", JSON
        if self.exchange is None:
            self.uploads[client, number] = decode_body(body)[1]
        else:
            update = decode_masked(self.declaration, body)
            self.exchange = server.accept_header(self.exchange, update.header)
            self.vectors[client] = update.vector
            self._go_on()
        return 201, receipt.model_dump_json().encode(), JSON

    def _accept(self, message: Any) -> None:
        assert self.exchange is not None
        self.exchange = server.accept_message(self.exchange, message)
        self._go_on()

    def _go_on(self) -> None:
        """Close the phase once all who are expected have spoken; the last one uncovers the sum."""
        assert self.exchange is not None
        here = self.expected & set(self.exchange.keys) if self.exchange.phase != "keys" else self.expected
        if not here <= set(self.exchange.collected(self.exchange.phase)):
            return
        if self.exchange.phase != "answers":
            self.exchange = server.close_phase(self.exchange)
        elif not self.uncovered:  # clients that ask again send their answers again
            self.uncovered = True
            self.means.append(server.unmask_mean(self.exchange, self.vectors))
            if self.number < self.rounds:
                self.begin_next_round()

    def _passed_on(self, client: str, call: str) -> tuple[int, bytes, str]:
        phase, make = PASSED[call]
        assert self.exchange is not None
        if PHASES.index(self.exchange.phase) <= PHASES.index(phase):  # type: ignore[arg-type]
            return 204, b"", JSON
        return _say(make(self.exchange, client))


def _say(message: BaseModel) -> tuple[int, bytes, str]:
    return 200, message.model_dump_json().encode(), JSON


@dataclass
class _Way(httpx.AsyncBaseTransport):
    """To the liar, whose answers are well signed: the key is its own."""

    liar: Liar
    client: str

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        await anyio.sleep(0.002)  # a poll that is answered at once would keep the loop from everybody else
        status, content, kind = self.liar.answer(self.client, request, body)
        sha256 = hashlib.sha256(content).digest()
        signed = sign_answer(status, sha256, request.headers["signature"], self.liar.key, created=1)
        headers = {"Content-Type": kind, **signed}
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(content))
