"""An account of differential privacy whose end is missing was believed, and so the silo spent its budget again.

Who: whoever can write the silo's state directory, and has not the client's key; or a backup that is put back in part.
What they got: with k of n charges left, n - k rounds more than the budget allows; with the secret replaced by one that
they know, the noise of every later round taken off.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.damaging import Change, both, cut, lines_of, remove, require_refusals, write_anew

if TYPE_CHECKING:
    from conftest import Federate, Opened

pytestmark = pytest.mark.anyio
ACCOUNT, SECRET, RELEASE = "privacy/account.jsonl", "privacy/secret", "privacy/release.safetensors"
HEADS = "ledger-heads.json"
NOISED: dict[str, Any] = {
    "mechanism": "gaussian",
    "clip_norm": 0.05,
    "noise_multiplier": 2.0,
    "scalar_noise_multiplier": 4.0,
    "delta": 1e-5,
    "budget": 30.0,
}


def first_twice(state: Path) -> None:
    """The last line is an older copy."""
    path = state / ACCOUNT
    first, *_ = lines_of(path)
    path.write_text(first + first)


def known_secret(state: Path) -> None:
    (state / SECRET).write_bytes(b"\0" * 32)


def is_first(entry: dict[str, Any]) -> bool:
    return bool(entry["sequence"] == 1)


FORGETS = "account.jsonl: expected the charge of the last release in "
DAMAGES: dict[str, tuple[Change, str]] = {
    "its last charge is gone": (cut(ACCOUNT, -1), FORGETS),
    "it is empty": (cut(ACCOUNT, 0), FORGETS),
    "it is empty and its heads are gone": (both(cut(ACCOUNT, 0), remove(HEADS)), "expected its head in"),
    "all of it is gone": (remove(ACCOUNT, SECRET, RELEASE), FORGETS),
    "all of it is gone, and the ledger is of an older version": (
        both(remove(ACCOUNT, SECRET, RELEASE, HEADS), write_anew("ledger.jsonl", bool, marked=False)),
        FORGETS,
    ),
    "it is shorter, and all are of an older version": (
        both(
            remove(HEADS),
            write_anew(ACCOUNT, is_first, marked=False),
            write_anew("ledger.jsonl", bool, marked=False),
        ),
        FORGETS,
    ),
    "its last charge is an older copy": (first_twice, FORGETS),
    "the silo's secret is another": (known_secret, "got another in its place"),
    "the silo's secret is gone": (remove(SECRET), "got none: restore it"),
}


async def test_a_client_does_not_start_beside_an_account_that_forgets(federation: Federate, opened: Opened) -> None:
    async with federation(2, first={"privacy": NOISED}) as running:
        await running.complete()
        await require_refusals(running, opened, DAMAGES)
