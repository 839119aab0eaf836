"""An account of differential privacy whose end is missing was believed, and so the silo spent its budget again.

Who: whoever can write the silo's state directory, and has not the client's key; or a backup that is put back in part.
What they got: with k of n charges left, n - k rounds more than the budget allows; with the secret replaced by one that
they know, the noise of every later round taken off.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shared.method.settings import MethodSettings
from tests.attacks.damaging import Change, both, cut, damaged, lines_of, refusal, remove, write_anew
from tests.client_service.asking import federated, finished

if TYPE_CHECKING:
    from conftest import LeapingClock, Opened, Silos, Until

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


FORGETS = "account.jsonl: expected the charge of the last release that "
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


async def test_a_client_does_not_start_beside_an_account_that_forgets(
    tmp_path: Path, silos: Silos, small: MethodSettings, clock: LeapingClock, keys: Path, opened: Opened, until: Until
) -> None:
    async with federated(tmp_path, silos(2), small, clock, keys, NOISED) as running:
        async with opened(running.clients[0], running.line()) as one, opened(running.clients[1], running.line()) as two:
            await running.start()
            await until(finished(one, two))
        for damage, (change, says) in DAMAGES.items():
            found = await refusal(opened, damaged(running.clients[0], damage, change), running.line())
            assert says in found, f"{damage}: {found}"
        assert await refusal(opened, damaged(running.clients[0], "nothing", both()), running.line()) == ""
