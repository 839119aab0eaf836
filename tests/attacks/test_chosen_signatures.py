"""A signature says nothing but that the silo's key has signed.

Who: whoever changes a library beneath a client's gate. Ed25519 signatures hold with any secret number r, and its point
R = r B is sent: whoever chooses r, or knows the key, reads 31 bytes of each signature. Nine requests carried 279 bytes
of interactions while the privacy report was green. RFC 8032 leaves no choice: r follows from key and message. So the
gate signs again and compares, before anything leaves.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from http_message_signatures import algorithms

from client_service.boundary import gate
from shared.protocol.secure.group import ORDER, multiply_base
from shared.protocol.signing import messages
from shared.protocol.signing.keys import new_key
from shared.protocol.signing.messages import RequestTarget, Signatory, holds, is_made_by, read, sign
from tests.support.questions import has_problem

if TYPE_CHECKING:
    from tests.support.given import Federate, Until

pytestmark = pytest.mark.anyio
SECRET = b"user-07 bought item-03, item-11"  # 31 bytes
TARGETS = [RequestTarget("GET", "/v1/runs/current", ""), RequestTarget("GET", "/v1/runs/current", "wait=5.0&after=1")]


def sign_with_chosen_number(seed: bytes, message: bytes) -> bytes:
    """A signature that holds, whose secret number is SECRET; the key's holder computes it again by r = S - h a."""
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    number = int.from_bytes(SECRET, "little")
    point, public = multiply_base(number), multiply_base(scalar)
    hashed = int.from_bytes(hashlib.sha512(point + public + message).digest(), "little")
    return point + ((number + hashed * scalar) % ORDER).to_bytes(32, "little")


class ChangedAlgorithm(algorithms.ED25519):
    """As a library that was changed signs."""

    def sign(self, message: bytes) -> bytes:
        return sign_with_chosen_number(self.private_key.private_bytes_raw(), message)


def signed(target: RequestTarget, monkeypatch: pytest.MonkeyPatch | None = None) -> tuple[dict[str, str], Any]:
    who = Signatory("client-1", new_key())
    if monkeypatch is not None:
        monkeypatch.setattr(messages.algorithms, "ED25519", ChangedAlgorithm)
    return sign(target, b"body", who, created=1_795_277_005, nonce="0" * 32), who.key


@pytest.mark.parametrize("target", TARGETS, ids=["without a query", "with one"])
def test_a_chosen_secret_number_gives_a_signature_that_holds_and_that_the_key_does_not_make(
    target: RequestTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, key = signed(target)
    assert holds(read(made.items()), target, key.public_key()) and is_made_by(made, target, key)
    made, key = signed(target, monkeypatch)
    assert holds(read(made.items()), target, key.public_key()), "the aggregator believes it"
    assert not is_made_by(made, target, key)
    carried = base64.b64decode(made[messages.SIGNATURE].split(":")[1])[:32]
    assert carried == multiply_base(int.from_bytes(SECRET, "little")), "it says what was chosen"


async def test_the_gate_lets_no_such_signature_leave(
    federation: Federate, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "sign", sign_by_changed_library)
    async with federation(1) as running:
        (silo,) = await running.enter()
        await until(has_problem(silo, "expected the one signature that this client's key makes of the request"))
        assert (await running.operator.get("/v1/clients")).json() == [], "nothing has arrived"


def sign_by_changed_library(*what: Any, **more: Any) -> dict[str, str]:
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(messages.algorithms, "ED25519", ChangedAlgorithm)
        return sign(*what, **more)
