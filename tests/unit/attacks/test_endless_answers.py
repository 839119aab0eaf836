"""What a client takes in of an aggregator's answer is no longer than an honest one.

Who: the aggregator, or whoever plays it. Before, each answer might have 256 MiB, all of it in memory, and a body of
parameters with 900,000 tensors without values was taken apart before it was found to be none.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from client_service.boundary.aggregator_api import Aggregator, connect
from client_service.boundary.gate import Boundary
from client_service.boundary.ledger import Ledger
from shared.errors import FederationError, ProtocolError, TooLargeError
from shared.method.declaration import Declaration
from shared.method.settings import MethodSettings
from shared.protocol.secure.messages import Roster
from shared.protocol.signing.keys import new_key
from shared.strategies import build_strategy
from shared.timeouts import CallLimits
from tests.system.attacks.test_many_empty_tensors import WIDE, many_empty_tensors

pytestmark = pytest.mark.anyio
HOME, PIECE, PIECES = "http://127.0.0.1", bytes(1 << 20), 200
SMALL = MethodSettings(width=4, layers=1)
MOST_BYTES = 16 << 20


@dataclass
class Endless(httpx.AsyncBaseTransport):
    """Answers every call with piece after piece; or with one body."""

    body: bytes | None = None
    sent: int = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=self._pieces(), request=request)

    async def _pieces(self) -> AsyncIterator[bytes]:
        if self.body is not None:
            yield self.body
            return
        for _ in range(PIECES):
            self.sent += len(PIECE)
            yield PIECE


@asynccontextmanager
async def calling(folder: Path, method: MethodSettings, outside: Endless) -> AsyncIterator[Aggregator]:
    declaration = build_strategy("lpsfed", method).declaration(method).model_copy(update={"secure": True})
    boundary = Boundary("ada", httpx.URL(HOME), declaration, counts=False, max_upload_bytes=64 << 20)
    ledger = Ledger(folder / "ledger.jsonl")
    async with connect(boundary, ledger, new_key(), limits=CallLimits(), inner=outside) as aggregator:
        yield aggregator


async def ask(aggregator: Aggregator, call: str, declaration: Declaration) -> object:
    asked = {
        "join": lambda: aggregator.join(declaration, None),
        "current": lambda: aggregator.fetch_run(None, 0.0),
        "model": lambda: aggregator.fetch_model("run-1"),
        "anchor": lambda: aggregator.fetch_anchor("run-1", 1),
        "personalized": lambda: aggregator.fetch_personalised("run-1", 1, 0.0),
        "roster": lambda: aggregator.fetch_message("roster", Roster, "run-1", 1, 0.0),
    }
    return await asked[call]()


@pytest.mark.parametrize("call", ["join", "current", "model", "anchor", "personalized", "roster"])
async def test_an_answer_without_end_is_cut_off_where_an_honest_one_ends(tmp_path: Path, call: str) -> None:
    outside = Endless()
    declaration = build_strategy("lpsfed", SMALL).declaration(SMALL).model_copy(update={"secure": True})
    async with calling(tmp_path, SMALL, outside) as aggregator:
        with pytest.raises(TooLargeError, match="expected an answer of at most"):
            await ask(aggregator, call, declaration)
    assert outside.sent < MOST_BYTES


async def test_a_head_of_many_tensors_is_not_taken_apart(tmp_path: Path) -> None:
    body = many_empty_tensors()
    async with calling(tmp_path, WIDE, Endless(body)) as aggregator:
        tracemalloc.start()
        try:
            with pytest.raises(FederationError) as raised:
                await aggregator.fetch_model("run-1")
            assert tracemalloc.get_traced_memory()[1] < 3 * len(body)
        finally:
            tracemalloc.stop()
    assert raised.type is ProtocolError and "a head of at most" in str(raised.value)
