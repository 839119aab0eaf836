"""Settings come in order; the policy can only take away."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_service.boundary.policy import Policy, allowed_declaration
from client_service.settings import client_settings
from shared.errors import PrivacyError, SettingsError
from shared.method.node_settings import NodeSettings
from shared.method.settings import MethodSettings
from shared.method.tensors import ITEM_TABLE
from shared.strategies import SHARES_ITEMS, STRATEGIES, build_strategy
from shared.strategies.agreement import find_task

NEEDED = {"name": "east", "shard": "/shard", "state_directory": "/state"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A settings file with all that is needed, and a little more."""
    lines = [*(f'{name} = "{value}"' for name, value in NEEDED.items()), "port = 1111", 'host = "127.1.1.1"']
    path = tmp_path / "client.toml"
    path.write_text("\n".join([*lines, "[method]", "width = 11", "layers = 3"]))
    return path


def test_flags_win_over_the_environment_and_the_environment_over_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (client_settings(file).port, client_settings(file).host) == (1111, "127.1.1.1")
    monkeypatch.setenv("LPSFED_CLIENT_PORT", "2222")
    monkeypatch.setenv("LPSFED_CLIENT_HOST", "127.2.2.2")
    found = client_settings(file, port=3333)
    assert (found.port, found.host, found.name) == (3333, "127.2.2.2", "east")


def test_a_nested_setting_of_the_environment_wins_over_the_file_s_and_leaves_the_others(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LPSFED_CLIENT_METHOD__WIDTH", "22")
    monkeypatch.setenv("LPSFED_CLIENT_POLICY__COUNTS", "true")
    found = client_settings(file)
    assert (found.method.width, found.method.layers, found.policy.counts) == (22, 3, True)


def test_the_environment_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in NEEDED.items():
        monkeypatch.setenv(f"LPSFED_CLIENT_{name.upper()}", value)
    monkeypatch.setenv("LPSFED_CLIENT_METHOD", '{"width": 5}')
    found = client_settings()
    assert (found.name, found.shard, found.method.width) == ("east", Path("/shard"), 5)


def test_each_bad_field_is_named_and_no_value_is_shown() -> None:
    bad = {
        "name": "Not A Name",
        "shard": "/shard",
        "aggregator_url": "ftp://somewhere",
        "strategy": "fedsomething",
        "device": "abacus",
        "threads": 0,
        "wait_seconds": -1,
        "port": 70_000,
        "policy": {"max_upload_bytes": 0, "also": "personal-detail"},
        "method": {"width": 0},
        "colour": "personal-detail",
    }
    with pytest.raises(SettingsError) as raised:
        client_settings(**bad)
    message = str(raised.value)
    named = [*(set(bad) - {"shard", "policy", "method"}), "state_directory", "policy.max_upload_bytes", "method.width"]
    assert [name for name in named if f"{name}: " not in message] == []
    assert "shard: " not in message and "personal-detail" not in message


@pytest.mark.parametrize("url", ["http://host/path", "http://host?x=1", "http://host#x", "host:80", "http://"])
def test_an_aggregator_is_named_by_scheme_host_and_port_alone(url: str) -> None:
    with pytest.raises(SettingsError, match="aggregator_url"):
        client_settings(**NEEDED, aggregator_url=url)


def test_a_file_that_is_no_toml_or_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("port = = 1")
    for name in ("bad.toml", "none.toml"):
        with pytest.raises(SettingsError, match=name):
            client_settings(tmp_path / name)


def test_environment_that_is_no_json_where_json_belongs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LPSFED_CLIENT_METHOD", "{width")
    with pytest.raises(SettingsError, match="method"):
        client_settings(**NEEDED)


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_the_declaration_is_the_installed_strategy_s(name: str) -> None:
    method = MethodSettings(width=4, layers=1, catalogue=9, nodes=NodeSettings(features=3, classes=2))
    strategy = STRATEGIES[name](method)
    policy = {"strategies": [name], "scalars": tuple(strategy.scalars)}
    chosen = {"strategy": name, "task": find_task(strategy, method), "method": method.model_dump()}
    found = client_settings(**NEEDED, **chosen, policy=policy).declaration()
    assert found == strategy.declaration(method) and found.strategy == name


def test_a_forbidden_strategy_is_refused() -> None:
    settings = client_settings(**NEEDED, strategy="lpsfed", policy={"strategies": ["fedavg", "local"]})
    with pytest.raises(PrivacyError, match=r"policy.*'lpsfed'"):
        settings.declaration()
    assert client_settings(**NEEDED, strategy="fedavg", policy={"strategies": ["fedavg"]}).declaration().tensors


@pytest.mark.parametrize("name", list(STRATEGIES))
def test_a_strategy_that_shares_items_or_tells_more_is_taken_part_in_only_where_the_policy_names_it(name: str) -> None:
    method = MethodSettings(width=4, layers=1, catalogue=9, nodes=NodeSettings(features=3, classes=2))
    strategy = build_strategy(name, method)
    assert strategy.shares_items(method) == (name in SHARES_ITEMS)
    if strategy.shares_items(method) or strategy.shard_statistics:
        with pytest.raises(PrivacyError, match=f"policy.*{name}"):
            allowed_declaration(strategy, method, Policy(scalars=tuple(strategy.scalars)), secure=False)
    else:
        assert (
            allowed_declaration(strategy, method, Policy(scalars=tuple(strategy.scalars)), secure=False).strategy
            == name
        )


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedper"])
def test_a_model_with_an_item_table_needs_more_than_the_strategy_s_name(name: str) -> None:
    method = MethodSettings(width=4, layers=1, catalogue=9, model="mf")
    strategy = build_strategy(name, method)
    with pytest.raises(PrivacyError, match="item_tables"):
        allowed_declaration(strategy, method, Policy(strategies=(name,)), secure=False)
    declared = allowed_declaration(strategy, method, Policy(item_tables=True), secure=False)
    assert [spec.name for spec in declared.tensors] == [ITEM_TABLE]


@pytest.mark.parametrize("left", [[], ["rho"], ["margin"]])
def test_a_strategy_with_a_forbidden_scalar_is_refused(left: list[str]) -> None:
    with pytest.raises(PrivacyError, match=r"policy.*forbids"):
        client_settings(**NEEDED, policy={"scalars": left}).declaration()
    assert client_settings(**NEEDED, strategy="fedavg", policy={"scalars": left}).declaration().scalars == ()


def test_a_policy_that_would_allow_more_adds_nothing_to_what_leaves() -> None:
    method = MethodSettings(width=4, layers=1, catalogue=9, nodes=NodeSettings(features=3, classes=2))
    for name in STRATEGIES:
        strategy = build_strategy(name, method)
        enough = Policy(strategies=(name,), scalars=tuple(strategy.scalars))
        wide = Policy(strategies=(*STRATEGIES, "another"), scalars=(*strategy.scalars, "recall"), counts=True)
        assert allowed_declaration(strategy, method, wide, secure=False) == allowed_declaration(
            strategy, method, enough, secure=False
        )
