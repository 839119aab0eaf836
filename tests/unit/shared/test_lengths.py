"""Limits of messages: an honest one always fits, with the longest names too."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from shared.errors import ProtocolError
from shared.method.declaration import Declaration
from shared.method.node_settings import NodeSettings
from shared.method.parameters import STORED, Parameters
from shared.method.settings import MethodSettings
from shared.protocol.lengths import (
    LONGEST_NAME,
    longest_head,
    longest_join,
    longest_message,
    longest_update,
    require_head,
)
from shared.protocol.masked_wire import encode_masked, masked_body_size
from shared.protocol.schemas import JoinIn
from shared.protocol.secure import vectors
from shared.protocol.secure.messages import (
    FEWEST_CLIENTS,
    ClientMessage,
    Consent,
    MaskedHeader,
    SealedShare,
    SealedShares,
    ShareCheck,
    UnmaskAnswer,
)
from shared.protocol.secure.vectors import MaskedUpdate
from shared.protocol.wire import encode_body, require_short_head
from shared.strategies import STRATEGIES, build_strategy

METHOD = MethodSettings(width=4, layers=1, catalogue=12, nodes=NodeSettings(features=3, classes=2))
HEX = "0" * 64
PLACE = {"run": "run-999999999", "round": 100_000, "client": LONGEST_NAME, "transcript": HEX}


def names(count: int) -> list[str]:
    return [f"{number:04d}{'n' * 59}" for number in range(count)]


def messages(count: int) -> list[ClientMessage]:
    """Full ones, as they are validated when they come."""
    committed = {f"{kind}_{what}": HEX for kind in ("key", "seed") for what in ("commitment", "response")}
    share = SealedShare(sealed="0" * 2 * (12 + 64 + 16), **committed)
    proof = {"head": HEX, "response": HEX}
    sharing = {"own": committed, "challenge": HEX, "key_proof": proof, "seed_proof": proof}
    complaint = {"point": HEX, "challenge": HEX, "response": HEX}
    others = names(count)
    return [
        SealedShares(**PLACE, shares=dict.fromkeys(others, share), **sharing, draw=HEX),
        ShareCheck(**PLACE, complaints=dict.fromkeys(others, complaint), tags=dict.fromkeys(others, "0" * 32)),
        Consent(**PLACE, survivors=others[::2], dropped=others[1::2], tags=dict.fromkeys(others, "0" * 32)),
        UnmaskAnswer(
            **{name: value for name, value in PLACE.items() if name != "transcript"},
            seeds=dict.fromkeys(others[::2], HEX),
            keys=dict.fromkeys(others[1::2], HEX),
        ),
    ]


@pytest.mark.parametrize("count", [FEWEST_CLIENTS, 64, 1024])
def test_the_longest_honest_message_fits_and_hardly_a_longer_one(count: int) -> None:
    for message in messages(count):
        length = len(message.model_dump_json())
        assert length <= longest_message(type(message), count) <= length + count + 8, type(message)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_strategy_declares_fits(strategy: str, tmp_path: Path) -> None:
    declaration = build_strategy(strategy, METHOD).declaration(METHOD)
    join = JoinIn(client="ada", declaration=declaration)
    assert len(join.model_dump_json()) < longest_join(declaration)
    arrays = {spec.name: np.zeros(spec.shape, np.float32) for spec in declaration.tensors}
    body = encode_body(Parameters(arrays, dict.fromkeys(declaration.scalars, -1.0 / 3)))
    assert len(body) < longest_update(declaration)
    (tmp_path / "body").write_bytes(body)
    require_head(declaration, tmp_path / "body")


def test_a_masked_vector_fits(tmp_path: Path) -> None:
    declaration = build_strategy("lpsfed", METHOD).declaration(METHOD).model_copy(update={"secure": True})
    pieces = {
        name: np.zeros(form.shape, STORED[form.dtype]) for name, form in vectors.vector_layout(declaration).items()
    }
    header = MaskedHeader(run="run-1", round=1, client=LONGEST_NAME, digest=HEX, scalars={"rho": -1.0 / 3})
    body = encode_masked(MaskedUpdate(header, pieces))
    assert len(body) == masked_body_size(declaration, header) < longest_update(declaration)
    (tmp_path / "body").write_bytes(body)
    require_head(declaration, tmp_path / "body")


@pytest.mark.parametrize("secure", [False, True])
def test_integers_take_4_bytes_open_and_masked(secure: bool) -> None:
    specs = [{"name": "n", "dtype": dtype, "shape": (1_000_000,)} for dtype in ("F32", "U32")]
    declared = ({"strategy": "fedavg", "tensors": (spec,), "scalars": (), "secure": secure} for spec in specs)
    floats, integers = (longest_update(Declaration.model_validate(one)) for one in declared)
    assert floats - integers == (2 * 4 * 1_000_000 if secure else 0)


@pytest.mark.parametrize("start", [b"", b"\x01", (1 << 63).to_bytes(8, "little")])
def test_a_head_that_is_no_head_or_too_long_is_refused(start: bytes) -> None:
    with pytest.raises(ProtocolError, match="expected a safetensors body with a head of at most 100 bytes"):
        require_short_head(start, 100)


def test_a_head_with_another_tensor_is_read_and_one_with_a_thousand_is_not(tmp_path: Path) -> None:
    declaration = build_strategy("lpsfed", METHOD).declaration(METHOD)
    for count, fits in ((1, True), (1000, False)):
        entries = {f"{n}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for n in range(count)}
        head = json.dumps(entries).encode()
        (tmp_path / "body").write_bytes(len(head).to_bytes(8, "little") + head)
        assert (len(head) <= longest_head(declaration)) == fits
        if fits:
            require_head(declaration, tmp_path / "body")
        else:
            with pytest.raises(ProtocolError):
                require_head(declaration, tmp_path / "body")
