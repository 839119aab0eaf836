"""What a secure federation cannot be: settings and runs that need to see single updates, or too few clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aggregator_service.settings import AggregatorSettings, aggregator_settings
from shared.errors import SettingsError
from shared.method.node_settings import NodeSettings
from shared.method.settings import MethodSettings
from shared.strategies import SHARES_ITEMS, STRATEGIES

if TYPE_CHECKING:
    from conftest import Running

SUMMABLE = {"lpsfed", "fedavg", "fedprox", "fedper", "fedssp", "fedadam", "fedyogi", "fedutr", "fedutr_sar", "fedsgd"}
SINGLE: list[dict[str, Any]] = [
    {"aggregate": "median"},
    {"aggregate": "trimmed_mean", "tolerated": 1},
    {"clip_factor": 2.0},
    {"quarantine_factor": 3.0},
]


def settings(tmp_path: Path, **overrides: Any) -> AggregatorSettings:
    return aggregator_settings(
        state_directory=tmp_path, operator_token="operator-token-of-the-tests", secure=True, **overrides
    )


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
def test_only_strategies_that_need_the_mean_alone_can_be_secure(tmp_path: Path, strategy: str) -> None:
    sizes = NodeSettings(features=3, classes=2)
    method = MethodSettings(catalogue=10 if strategy in SHARES_ITEMS else 0, nodes=sizes)
    if strategy in SUMMABLE:
        assert settings(tmp_path, strategy=strategy, method=method).declaration().secure
    else:
        with pytest.raises(
            SettingsError, match=r"expected (a strategy that needs the mean alone|server_step.magnitudes)"
        ):
            settings(tmp_path, strategy=strategy, method=method)


@pytest.mark.parametrize("single", SINGLE, ids=lambda one: next(iter(one)))
def test_a_service_does_not_start_with_what_needs_single_updates(tmp_path: Path, single: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=f"secure: .*{next(iter(single))}|secure: expected a strategy"):
        settings(tmp_path, method=MethodSettings(**single))


@pytest.mark.anyio
async def test_a_run_is_refused_with_what_needs_single_updates_or_with_too_few_clients(running: Running) -> None:
    async with running(secure=True) as federation:
        method = federation.settings.method.model_dump(mode="json")
        for single in SINGLE:
            answer = await federation.start_run(clients=3, method=method | single)
            assert answer.status_code == 422, answer.text
        for clients in (1, 2, 1025):
            answer = await federation.start_run(clients=clients)
            assert (answer.status_code, "expected 3 to 1024 (secure)" in answer.text) == (422, True)
        answer = await federation.start_run(clients=3, deadline_seconds=10.0)
        assert (answer.status_code, "deadline_seconds: expected more than 20" in answer.text) == (422, True)
        assert (await federation.start_run(clients=3)).status_code == 201


@pytest.mark.anyio
async def test_a_directory_is_of_a_secure_federation_or_of_an_open_one_for_good(running: Running) -> None:
    async with running():
        pass
    with pytest.raises(SettingsError, match="other in being secure"):
        async with running(secure=True):
            pass


@pytest.mark.anyio
async def test_a_client_that_is_not_secure_does_not_join(running: Running) -> None:
    async with running(secure=True) as federation:
        ada = federation.client("ada")
        answer = await ada.join(declaration=ada.declaration.model_dump(mode="json") | {"secure": False})
        assert (answer.status_code, answer.json()["code"]) == (422, "protocol")
        assert (await ada.join()).status_code == 200
