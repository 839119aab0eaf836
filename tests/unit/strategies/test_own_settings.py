"""A strategy's own settings are validated, reach its training, and travel with the run's settings."""

from __future__ import annotations

import pytest

from shared.errors import SettingsError
from shared.method.settings import MethodSettings, method_settings
from shared.strategies import STRATEGIES, build_strategy
from shared.strategies.fedprox import FedProxSettings


def test_a_setting_of_its_own_is_given_by_a_dotted_name_as_text_or_number() -> None:
    for value in ("0.5", 0.5):
        settings = build_strategy("fedprox", method_settings(**{"strategy.mu": value})).settings
        assert settings == FedProxSettings(mu=0.5)


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_a_setting_that_a_strategy_has_not_is_refused_with_those_that_it_has(name: str) -> None:
    method = MethodSettings(catalogue=1, strategy={"unheard_of": 1.0})
    with pytest.raises(SettingsError, match=r"strategy: expected .*unheard_of"):
        build_strategy(name, method)


def test_a_value_out_of_range_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"mu: .*expected a number of 0 or more"):
        build_strategy("fedprox", method_settings(**{"strategy.mu": -1.0}))


def test_settings_without_any_are_written_as_before() -> None:
    assert "strategy" not in MethodSettings().model_dump(mode="json")
    changed = method_settings(**{"strategy.mu": 0.5})
    assert MethodSettings.model_validate_json(changed.model_dump_json()) == changed
