"""The gate in a secure federation: masked vectors and the messages of a round pass, and nothing that lies open."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from client_service.boundary.aggregator_api import OWN_HEADERS, connect
from client_service.boundary.gate import Boundary, declared_calls
from client_service.boundary.ledger import Ledger
from shared.errors import PrivacyError
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import STORED, Parameters
from shared.protocol.masked_wire import encode_masked
from shared.protocol.secure import vectors
from shared.protocol.secure.messages import CommonTerms, MaskedHeader, RoundTerms
from shared.protocol.secure.vectors import MaskedUpdate
from shared.protocol.signing.keys import new_key
from shared.protocol.wire import MEDIA_TYPE, encode_body
from shared.timeouts import CallLimits
from tests.support.rehearsal import Rehearsal

pytestmark = pytest.mark.anyio

HOME = "http://aggregator:8800"
DECLARATION = Declaration(
    strategy="lpsfed",
    tensors=(
        TensorSpec(name="basis.n", dtype="U32", shape=(20,)),
        TensorSpec(name="pooling.b", shape=(1,)),
        TensorSpec(name="pooling.w", shape=(6, 6)),
    ),
    scalars=("margin", "rho"),
    secure=True,
)
OWN = "/v1/runs/run-1/rounds/1/clients/east"
COMMON = CommonTerms(aggregator="0a" * 32, start="0b" * 32, method="0c" * 32, seed=0, rounds=1, anchor="0d" * 32)
TERMS = RoundTerms(run="run-1", round=1, threshold=3, declaration=DECLARATION, common=COMMON)
JSON = "application/json"


def update() -> Parameters:
    rng = np.random.default_rng(1)
    drawn = {spec.name: rng.normal(size=spec.shape).astype(np.float32) for spec in DECLARATION.tensors}
    arrays = drawn | {"basis.n": rng.integers(0, 50, 20, dtype=np.uint32)}
    return Parameters(arrays, {"margin": 0.25, "rho": 0.5})


def said() -> dict[str, bytes]:
    """What east says in a round with north and west."""
    made = Rehearsal(dict.fromkeys(("east", "north", "west"), update()), terms=TERMS)
    made.until_masked(made.contents)
    made.send_consents(made.contents)
    made.close()
    told = {call: made.round.collected(call)["east"] for call in ("keys", "shares", "checks", "consents")}
    told["answers"] = made.answer("east")
    masked = encode_masked(made.mask("east"))
    return {call: message.model_dump_json().encode() for call, message in told.items()} | {"update": masked}


SAID = said()


def opened(values: Parameters, **header: Any) -> bytes:
    """A vector in fixed point that nobody has masked."""
    pieces = vectors.encode_vector(DECLARATION, values)
    named = {
        "run": "run-1",
        "round": 1,
        "client": "east",
        "digest": vectors.digest_vector(pieces),
        "scalars": {"rho": 0.5},
    }
    return encode_masked(MaskedUpdate(MaskedHeader(**(named | header)), pieces))


def partly_masked(*names: str) -> bytes:
    """Random numbers for masked ones, but for these tensors."""
    pieces = {
        **vectors.encode_vector(DECLARATION, update()),
        **{n: v for n, v in drawn_pieces().items() if n not in names},
    }
    header = MaskedHeader(run="run-1", round=1, client="east", digest=vectors.digest_vector(pieces), scalars={})
    return encode_masked(MaskedUpdate(header, pieces))


def drawn_pieces() -> dict[str, Any]:
    rng = np.random.default_rng(2)
    words = {name: rng.bytes(form.bytes) for name, form in vectors.vector_layout(DECLARATION).items()}
    return {
        n: np.frombuffer(words[n], STORED[f.dtype]).reshape(f.shape)
        for n, f in vectors.vector_layout(DECLARATION).items()
    }


def rewritten(**header: Any) -> bytes:
    """The masked vector under another header."""
    pieces = drawn_pieces()
    named = {
        "run": "run-1",
        "round": 1,
        "client": "east",
        "digest": vectors.digest_vector(pieces),
        "scalars": {"rho": 0.5},
    }
    return encode_masked(MaskedUpdate(MaskedHeader(**(named | header)), pieces))


def respaced(body: bytes) -> bytes:
    """The very content, with a space in its header that its client does not write."""
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    header["__metadata__"]["masked"] = header["__metadata__"]["masked"].replace(":", ": ", 1)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body[8 + length :]


@dataclass
class Gated:
    http: httpx.AsyncClient
    ledger: Ledger
    reached: list[httpx.Request] = field(default_factory=list)

    async def put(self, call: str, body: bytes, path: str = "") -> httpx.Response:
        kind = MEDIA_TYPE if call == "update" else JSON
        return await self.http.put(path or f"{OWN}/{call}", content=body, headers={"Content-Type": kind})

    async def refused(self, call: str, body: bytes, path: str = "") -> None:
        with pytest.raises(PrivacyError):
            await self.put(call, body, path)
        assert self.reached == [] and len(self.ledger) == 0


@pytest.fixture
async def gated(tmp_path: Path) -> AsyncIterator[Gated]:
    reached: list[httpx.Request] = []

    def answered(request: httpx.Request) -> httpx.Response:
        reached.append(request)
        return httpx.Response(204, stream=httpx.ByteStream(b""))

    boundary = Boundary("east", httpx.URL(HOME), DECLARATION, False, 100_000)
    ledger, inner = Ledger(tmp_path / "ledger.jsonl"), httpx.MockTransport(answered)
    async with connect(boundary, ledger, new_key(), limits=CallLimits(), inner=inner) as link:
        http = httpx.AsyncClient(transport=link.gate, base_url=HOME, headers=OWN_HEADERS, trust_env=False)
        yield Gated(http, ledger, reached)


@pytest.mark.parametrize("call", sorted(SAID))
async def test_what_a_round_needs_passes_and_is_on_record(gated: Gated, call: str) -> None:
    await gated.put(call, SAID[call])
    assert gated.reached[0].content == SAID[call]
    intent, _ = gated.ledger.entries()
    assert (intent["call"], intent["run"], intent["round"], intent["bytes"]) == (call, "run-1", "1", len(SAID[call]))


async def test_the_ledger_tells_a_masked_vector_by_its_fields_and_whose_shares_left(gated: Gated) -> None:
    for call in ("update", "shares", "checks", "consents", "answers"):
        await gated.put(call, SAID[call])
    update, shares, checks, consents, answers = (entry for entry in gated.ledger.entries() if entry["kind"] == "intent")
    assert [(one["name"], one["dtype"], one["shape"]) for one in update["tensors"]] == [
        ("#scalars", "U64", [1]),
        ("basis.n", "U32", [20]),
        ("pooling.b", "U64", [1]),
        ("pooling.w", "U64", [6, 6]),
    ]
    assert update["scalars"] == {"rho": 0.5}
    assert shares["concerns"] == {"sealed for": ["north", "west"]}
    assert checks["concerns"] == {"complains of": []}
    assert consents["concerns"] == {"survivors": ["east", "north", "west"], "dropped": []}
    assert answers["concerns"] == {"seeds of": ["east", "north", "west"], "mask keys of": []}


@pytest.mark.parametrize(
    "body",
    [
        encode_body(update()),
        opened(update()),
        partly_masked("pooling.w"),
        partly_masked("basis.n"),
        rewritten(client="north"),
        rewritten(run="run-2"),
        rewritten(round=2),
        rewritten(scalars={"rho": 0.5, "margin": 0.25}),
        rewritten(digest="0" * 64),
        SAID["update"] + b" ",
        respaced(SAID["update"]),
        SAID["keys"],
    ],
)
async def test_an_unmasked_or_other_body_does_not_leave_as_an_update(gated: Gated, body: bytes) -> None:
    await gated.refused("update", body)


def other(call: str, **changed: Any) -> bytes:
    message: Mapping[str, Any] = json.loads(SAID[call]) | changed
    return json.dumps(message, separators=(",", ":")).encode()


@pytest.mark.parametrize("call", ["keys", "shares", "checks", "consents", "answers"])
async def test_a_message_of_a_round_has_one_form_and_one_sender_and_one_round(gated: Gated, call: str) -> None:
    for changed in ({"client": "north"}, {"run": "run-2"}, {"round": 2}, {"also": "this"}):
        await gated.refused(call, other(call, **changed))
    await gated.refused(call, json.dumps(json.loads(SAID[call])).encode())
    await gated.refused(call, SAID[call], f"/v1/runs/run-1/rounds/1/clients/north/{call}")
    await gated.refused("shares" if call == "keys" else "keys", SAID[call])


def test_an_open_federation_declares_no_call_of_a_secure_round() -> None:
    open_calls, secure_calls = declared_calls("east"), declared_calls("east", secure=True)
    assert {call.name for call in secure_calls} - {call.name for call in open_calls} == {
        "keys", "roster", "shares", "delivery", "checks", "sharers", "request", "consents", "signatures", "answers",
    }  # fmt: skip
