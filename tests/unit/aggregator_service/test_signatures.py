"""The window of time, second by second: what is believed, what is remembered, and that one never outlives the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aggregator_service.signatures import RegisteredKeys, Signatures
from aggregator_service.storage.disk import Disk
from aggregator_service.storage.nonces import Nonces
from shared.errors import AuthenticationError, ClockError, ReplayError
from shared.protocol.signing.enrolment import enrol_client
from shared.protocol.signing.keys import read_private
from shared.protocol.signing.requests import RequestTarget, Signatory, sign_request

WINDOW = 60
START = 1_700_000_000.0
ASKED = RequestTarget("GET", "/v1/runs/current", "wait=20")


@dataclass
class Desk:
    """An aggregator's look at signatures, and a client's."""

    signatures: Signatures
    east: Signatory
    now: float = START

    def comes(self, signed: float, nonce: int = 0) -> None:
        """A request that was signed so many seconds after the start comes now."""
        headers = sign_request(ASKED, b"", self.east, created=int(START + signed), nonce=f"{nonce:032x}")
        self.signatures.verify_request(ASKED, headers.items())


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    pair, keys = enrol_client("east", tmp_path, tmp_path / "keys"), RegisteredKeys(tmp_path / "keys")
    nonces = Nonces(tmp_path, Disk(), seconds=WINDOW)
    signatures = Signatures(keys, nonces, seconds=WINDOW, clock=lambda: desk.now)
    desk = Desk(signatures, Signatory("east", read_private(pair.private)))
    yield desk
    signatures.close()


@pytest.mark.parametrize("signed", [-WINDOW, 0, WINDOW])
def test_within_the_window_it_is_believed_once_and_never_again(desk: Desk, signed: int) -> None:
    desk.comes(signed)
    for later in range(0, 4 * WINDOW + 1, 5):
        desk.now = START + later
        with pytest.raises((ClockError, ReplayError)) as raised:
            desk.comes(signed)
        assert (raised.type is ClockError) == (later > WINDOW + signed)


@pytest.mark.parametrize(("signed", "words"), [(-WINDOW - 1, "61 s behind"), (WINDOW + 1, "61 s ahead of")])
def test_one_second_beyond_it_is_not(desk: Desk, signed: int, words: str) -> None:
    expected = f"signature: expected a time within 60 s of the aggregator's clock, got one {words} it: set the clocks"
    with pytest.raises(ClockError) as raised:
        desk.comes(signed)
    assert str(raised.value) == expected


def test_what_is_refused_for_its_time_is_not_remembered(desk: Desk) -> None:
    with pytest.raises(ClockError):
        desk.comes(2 * WINDOW)
    desk.now = START + 2 * WINDOW
    desk.comes(2 * WINDOW)


def test_what_is_refused_for_its_key_uses_no_nonce_up(desk: Desk, tmp_path: Path) -> None:
    thief = read_private(enrol_client("west", tmp_path / "west", tmp_path / "elsewhere").private)
    headers = sign_request(ASKED, b"", Signatory("east", thief), created=int(START), nonce="0" * 32)
    with pytest.raises(AuthenticationError, match="got another"):
        desk.signatures.verify_request(ASKED, headers.items())
    desk.comes(0)
