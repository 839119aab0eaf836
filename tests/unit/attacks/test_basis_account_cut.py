"""An account of noised sums that was put back from an older copy, or taken away, must not let them be spent again.

Who: a backup that is put back in part, and an operator who then adopts what is there; or whoever can write the state.
The ledger told of each noised part with its charge, and nothing compared them: beside a ledger without heads, or after
`lpsfed ledger adopt`, the account of the sums began anew, and the budget of each user with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from client_service.boundary.ledger import LEDGER
from client_service.boundary.ledger_heads import NAME, HeadedLedger, LedgerHeads
from client_service.privacy.basis_guard import ACCOUNT, SECRET, BasisGuard
from client_service.refresh.record_check import adopt_records, verify_records
from client_service.sums.statistics import weigh_pairs
from shared.errors import DataError
from shared.method.parameters import Parameters
from shared.method.settings import method_settings
from shared.protocol.secure.messages import CommonTerms, RoundTerms
from shared.protocol.signing.keys import new_key
from shared.strategies.sum_strategy import sum_strategy

KEY, BUDGET, DELTA = new_key(), 20.0, 1e-5
FORGETS = "basis-account.jsonl: expected the charge of the last release in .*ledger.jsonl"


def send_noised(state: Path, run: str) -> None:
    """A silo's part of a noised sum leaves, and is on the ledger with its charge."""
    heads = LedgerHeads(state, KEY)
    guard, ledger = BasisGuard(heads, BUDGET, DELTA), HeadedLedger(heads, LEDGER)
    told = dict.fromkeys(("aggregator", "start", "method", "anchor"), "0a" * 32)
    method = method_settings(catalogue=6, **{"basis.kind": "exact", "basis.epsilon": 8.0})
    terms = RoundTerms(
        run=run,
        round=1,
        threshold=3,
        declaration=sum_strategy(method).declaration(method),
        common=CommonTerms(**told, seed=0, rounds=1),
    )
    guard.release(Parameters(weigh_pairs(sparse.csr_array(np.eye(6)))), terms, method)
    ledger.append("masked", durable_head=True, run=run, noise=guard.permit())
    heads.save()


def older_copy(state: Path) -> None:
    shutil.copy(state.parent / "older", state / ACCOUNT)


def gone(state: Path) -> None:
    for name in (ACCOUNT, SECRET):
        (state / name).unlink()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two noised parts have left; beside it the account as it was after the first."""
    folder = tmp_path / "state"
    folder.mkdir()
    send_noised(folder, "run-1")
    shutil.copy(folder / ACCOUNT, tmp_path / "older")
    send_noised(folder, "run-2")
    return folder


@pytest.mark.parametrize("damage", [older_copy, gone])
def test_a_silo_does_not_start_beside_it_and_nobody_adopts_it(state: Path, damage: Callable[[Path], None]) -> None:
    assert not verify_records(state, KEY).faults
    damage(state)
    assert any("basis-account.jsonl" in fault for fault in verify_records(state, KEY).faults)
    with pytest.raises(DataError, match=FORGETS):
        adopt_records(state, KEY, "put back from a backup")
    (state / NAME).unlink()  # as beside a ledger of an older version
    with pytest.raises(DataError, match=FORGETS):
        BasisGuard(LedgerHeads(state, KEY), BUDGET, DELTA)


def test_a_whole_account_is_adopted_with_its_secret(state: Path) -> None:
    (state / NAME).unlink()
    adopt_records(state, KEY, "the heads were lost")
    (state / SECRET).write_bytes(bytes(32))
    with pytest.raises(DataError, match="got another in its place"):
        BasisGuard(LedgerHeads(state, KEY), BUDGET, DELTA)
    assert any("basis-secret" in fault for fault in verify_records(state, KEY).faults)
