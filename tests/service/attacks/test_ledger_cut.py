"""A ledger whose end was missing, or that was written anew, was believed: a chain of hashes cannot show either.

Who: whoever can write the silo's state directory, and has not the client's key: the administrator of a volume, a
backup that is put back, another process of the machine. What they got: uploads that the silo's own record does not
have. The client went on from the shorter ledger as if nothing had been.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.damaging import Change, both, cut, remove, require_refusals, write_anew

if TYPE_CHECKING:
    from conftest import Federate, Opened

pytestmark = pytest.mark.anyio
LEDGER, HEADS = "ledger.jsonl", "ledger-heads.json"


def not_an_update(entry: dict[str, Any]) -> bool:
    return entry.get("call") != "update" and "receipt" not in entry


def from_another_silo(state: Path) -> None:
    other = state.with_name("client-2")
    (state / HEADS).write_bytes((other / HEADS).read_bytes() if (other / HEADS).exists() else b"")


DAMAGES: dict[str, tuple[Change, str]] = {
    "its last call is gone": (cut(LEDGER, -2), "its end was cut off"),
    "half of it is gone": (cut(LEDGER, 5), "its end was cut off"),
    "it is empty": (cut(LEDGER, 0), "its end was cut off"),
    "there is none": (remove(LEDGER), "its end was cut off"),
    "it was written anew without the updates": (write_anew(LEDGER, not_an_update), "its end was cut off"),
    "the same, and its heads are gone": (both(write_anew(LEDGER, not_an_update), remove(HEADS)), "got none"),
    "the anchors that it answered for are gone": (
        remove("anchors.jsonl"),
        "anchors.jsonl: expected at least 1 entries",
    ),
    "its heads are gone": (remove(HEADS), "expected its head in"),
    "its heads are another silo's": (from_another_silo, "made with another"),
}


async def test_a_client_does_not_start_beside_a_ledger_that_was_cut(federation: Federate, opened: Opened) -> None:
    async with federation(2) as running:
        await running.complete()
        await require_refusals(running, opened, DAMAGES)
