"""A limit of bytes that no update of the federation fits in is found at the start of both services."""

from __future__ import annotations

from pathlib import Path
from secrets import token_urlsafe

import pytest

from aggregator_service.settings import aggregator_settings
from client_service.boundary.policy import Policy, allowed_declaration
from shared.errors import PrivacyError, SettingsError
from shared.method.settings import method_settings
from shared.protocol.lengths import least_update
from shared.strategies import build_strategy
from shared.strategies.agreement import declare_federation
from shared.sums.item_basis import MOST_EXACT


def test_a_limit_below_what_an_update_has_is_refused_with_both_numbers(tmp_path: Path) -> None:
    # Secure, each number masked at 8 bytes: refused at the start, not in the first round.
    method = method_settings("sessions", catalogue=43_097, width=600, **{"server_step.magnitudes": "reported"})
    least = least_update(declare_federation(build_strategy("fedga", method), method, secure=True))
    assert least > 160 << 20
    settings = aggregator_settings(
        strategy="fedga", method=method, secure=True, operator_token=token_urlsafe(32), state_directory=tmp_path
    )
    with pytest.raises(SettingsError, match=f"max_upload_bytes: expected {least:,} bytes or more.*got 167,772,160"):
        _ = settings.longest_update
    policy = Policy(strategies=("fedga",), item_tables=True)
    with pytest.raises(PrivacyError, match=f"max_upload_bytes of {least:,} or more.*got 167,772,160"):
        allowed_declaration(build_strategy("fedga", method), method, policy, secure=True)
    roomy = policy.model_copy(update={"max_upload_bytes": least})
    assert allowed_declaration(build_strategy("fedga", method), method, roomy, secure=True).secure


@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_sums_of_all_pairs_of_the_longest_list_fit_in_the_usual_limits(tmp_path: Path, epsilon: float | None) -> None:
    method = method_settings(catalogue=MOST_EXACT, **{"basis.kind": "exact", "basis.epsilon": epsilon})
    settings = aggregator_settings(
        method=method, secure=True, operator_token=token_urlsafe(32), state_directory=tmp_path, demo=True
    )
    assert settings.longest_update <= settings.max_upload_bytes
    policy = Policy(common_basis="noised" if epsilon else "secure", basis_budget=8.0)
    assert allowed_declaration(build_strategy("lpsfed", method), method, policy, secure=True).sums
