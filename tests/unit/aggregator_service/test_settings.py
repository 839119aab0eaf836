"""Settings from the environment, and what a bad one says."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator_service.__main__ import main
from aggregator_service.settings import aggregator_settings
from shared.errors import SettingsError


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a token of the operator\n", encoding="utf-8")
    values = {"STATE_DIRECTORY": tmp_path, "OPERATOR_TOKEN_FILE": tmp_path / "token", "METHOD__WIDTH": 32, "PORT": 81}
    for name, value in values.items():
        monkeypatch.setenv(f"LPSFED_AGGREGATOR_{name}", str(value))
    settings = aggregator_settings()
    assert (settings.method.width, settings.port, settings.token()) == (32, 81, "a token of the operator")


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        ({"operator_token": "too-short"}, "operator_token: expected at least 16 characters, got 9"),
        ({"operator_token": None}, "operator_token: expected either it or operator_token_file"),
        ({"operator_token": None, "operator_token_file": "/nowhere"}, "operator_token_file: expected a readable"),
        ({"strategy": "fedsgd"}, "strategy: expected one of lpsfed, fedavg, local, .* got 'fedsgd'"),
        ({"port": 99999}, "port: "),
        ({"method": {"width": 0}}, "method.width: "),
    ],
)
def test_a_bad_setting_is_named_and_no_secret_is_repeated(bad: dict[str, object], expected: str) -> None:
    values = {"state_directory": "state", "operator_token": "token-of-the-tests"} | bad
    with pytest.raises(SettingsError, match=expected) as caught:
        aggregator_settings(**values)
    assert "too-short" not in str(caught.value)


def test_without_settings_the_program_ends_with_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 2
    assert capsys.readouterr().err == "aggregator: state_directory: Field required\n"
