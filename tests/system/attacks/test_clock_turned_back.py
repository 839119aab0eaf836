"""Whoever moves the aggregator's clock does not get a request accepted a second time.

Who: somebody who has recorded a client's request, and who can move the aggregator's clock (the time that its network
tells, the machine). The nonce was forgotten once the request was too old; before, the same bytes counted again as soon
as the clock stood where it had stood.
"""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.support.besieged import Besieged

HOUR = 3600.0
LATER = 2.0  # a signature says whole seconds: one of the second that was forgotten last is not believed either
ASKED = "/v1/runs/current"


def recorded(besieged: Besieged, *, ahead: float = 0.0) -> dict[str, str]:
    """The headers of a request of ada's, signed by a clock that is so far ahead, which has just been answered."""
    headers = besieged.signing("ada", late=-ahead).headers("GET", ASKED.encode(), b"")
    assert httpx.get(f"{besieged.url}{ASKED}", headers=headers).is_success
    return headers


def again(besieged: Besieged, headers: dict[str, str]) -> tuple[int, str]:
    answer = httpx.get(f"{besieged.url}{ASKED}", headers=headers)
    return answer.status_code, answer.json().get("code", "")


@pytest.mark.parametrize("restarted", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_was_forgotten_is_not_believed_again_once_the_clock_is_back(tmp_path: Path, restarted: bool) -> None:
    besieged = Besieged(tmp_path)
    with besieged.running():
        besieged.join("ada", "bob")
        headers = recorded(besieged)
        assert again(besieged, headers) == (401, "replay")
        besieged.set_clock(HOUR)  # forwards: anybody's next request lets all older ones be forgotten
        recorded(besieged, ahead=HOUR)
        besieged.set_clock(0.0)
        if not restarted:
            assert again(besieged, headers) == (401, "clock")
            assert besieged.is_answered("bob", late=-LATER)
    with besieged.running():
        assert again(besieged, headers) == (401, "clock")
        assert besieged.is_answered("bob", late=-LATER)
