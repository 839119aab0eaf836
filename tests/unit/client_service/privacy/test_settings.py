"""What a silo may choose, and what is refused because nobody could say what it hides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_service.boundary.policy import Policy
from client_service.privacy.settings import PrivacySettings
from client_service.settings import ClientSettings, client_settings
from shared.errors import SettingsError
from shared.method.settings import MethodSettings, validate_settings

GAUSSIAN: dict[str, Any] = {
    "mechanism": "gaussian",
    "clip_norm": 0.1,
    "noise_multiplier": 1.5,
    "delta": 1e-5,
    "budget": 8.0,
}
LAPLACE: dict[str, Any] = {"mechanism": "laplace", "clip_norm": 0.1, "round_epsilon": 2.0, "budget": 8.0}


def refusal(values: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as raised:
        validate_settings(PrivacySettings, values)
    return str(raised.value)


def client(tmp_path: Path, **changes: Any) -> ClientSettings:
    values: dict[str, Any] = {
        "name": "east",
        "shard": tmp_path,
        "state_directory": tmp_path,
        "privacy": GAUSSIAN,
    } | changes
    return client_settings(**values)


def test_it_is_off_unless_the_silo_says_otherwise(tmp_path: Path) -> None:
    settings = client_settings(name="east", shard=tmp_path, state_directory=tmp_path)
    assert not settings.privacy.is_on and settings.privacy.mechanism == "off"


def test_neither_a_run_nor_the_method_can_say_anything_of_it() -> None:
    assert [name for name in MethodSettings.model_fields if "privacy" in name or "clip_norm" in name] == []


@pytest.mark.parametrize("name", [name for name in GAUSSIAN if name != "mechanism"])
def test_nothing_can_be_said_while_it_is_off(name: str) -> None:
    assert f"expected gaussian or laplace with {name}, got off" in refusal({name: GAUSSIAN[name]})


@pytest.mark.parametrize("chosen", [GAUSSIAN, LAPLACE])
def test_each_mechanism_needs_all_that_it_is_told_by(chosen: dict[str, Any]) -> None:
    assert validate_settings(PrivacySettings, chosen).is_on
    for name in set(chosen) - {"mechanism"}:
        without = {key: value for key, value in chosen.items() if key != name}
        assert f"{name}: expected one with mechanism = {chosen['mechanism']}, got none" in refusal(without)


@pytest.mark.parametrize(
    ("chosen", "name", "value"),
    [
        (LAPLACE, "delta", 1e-5),
        (LAPLACE, "noise_multiplier", 1.0),
        (LAPLACE, "scalar_noise_multiplier", 1.0),
        (GAUSSIAN, "round_epsilon", 1.0),
        (GAUSSIAN, "scalar_epsilon", 1.0),
    ],
)
def test_what_belongs_to_the_other_mechanism_is_refused(chosen: dict[str, Any], name: str, value: float) -> None:
    assert f"{name}: expected none with mechanism = {chosen['mechanism']}, got one" in refusal(chosen | {name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise_multiplier", 0.0),
        ("noise_multiplier", float("inf")),
        ("clip_norm", -1.0),
        ("clip_norm", float("nan")),
        ("delta", 0.0),
        ("delta", 1.0),
        ("budget", 0.0),
        ("budget", float("inf")),
        ("margin_range", (0.3, 0.0)),
        ("scalar_ranges", {"rho": (0.0, float("inf"))}),
        ("scalar_ranges", {"another": (0.0, 1.0)}),
        ("mechanism", "exponential"),
        ("sensitivity", 1.0),
    ],
)
def test_values_that_promise_nothing_are_refused(name: str, value: object) -> None:
    assert name in refusal(GAUSSIAN | {name: value})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strategy": "local"}, "which sends nothing"),
        ({"strategy": "fedmf", "policy": Policy(strategies=("fedmf",))}, "without item tables"),
        ({"strategy": "f2mf", "policy": Policy(strategies=("f2mf",))}, "without item tables"),
        ({"policy": Policy(counts=True)}, "counts leave without noise"),
    ],
)
def test_what_no_account_covers_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        client(tmp_path, **changes)


@pytest.mark.parametrize("strategy", ["lpsfed", "fedavg", "fedprox", "fedper", "fedpub", "fedssp"])
def test_strategies_of_small_networks_may_be_noised(tmp_path: Path, strategy: str) -> None:
    assert client(tmp_path, strategy=strategy).privacy.is_on


def test_a_table_may_be_noised_whose_mean_asks_for_no_moved_rows(tmp_path: Path) -> None:
    policy = Policy(strategies=("fedutr",))
    method = MethodSettings(catalogue=9)
    assert client(tmp_path, strategy="fedutr", policy=policy, method=method).privacy.is_on
    moved = method.model_copy(update={"strategy": {"table_mean": "moved"}})
    with pytest.raises(SettingsError, match="whose mean asks which rows have moved"):
        client(tmp_path, strategy="fedutr", policy=policy, method=moved)


def test_the_environment_can_choose_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in LAPLACE.items():
        monkeypatch.setenv(f"LPSFED_CLIENT_PRIVACY__{name.upper()}", str(value))
    found = client_settings(name="east", shard=tmp_path, state_directory=tmp_path)
    assert found.privacy == validate_settings(PrivacySettings, LAPLACE)


def test_noise_is_told_over_the_sensitivity_of_each_part() -> None:
    gaussian = validate_settings(PrivacySettings, GAUSSIAN | {"scalar_noise_multiplier": 9.0})
    assert [gaussian.noise(part) for part in ("tensors", "margin", "rho")] == [("gaussian", z) for z in (1.5, 9.0, 9.0)]
    laplace = validate_settings(PrivacySettings, LAPLACE | {"scalar_epsilon": 0.25})
    assert [laplace.noise(part) for part in ("tensors", "margin", "rho")] == [("laplace", z) for z in (0.5, 4.0, 4.0)]
    assert validate_settings(PrivacySettings, GAUSSIAN).noise("rho") == ("gaussian", 1.5)
