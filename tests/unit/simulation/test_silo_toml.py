"""What an aggregator declares -> silo.toml -> the very same settings in the silo's client; what a silo must allow."""

from __future__ import annotations

import tomllib
import typing
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from client_service.settings import client_settings
from shared.errors import PrivacyError, SettingsError
from shared.method.node_settings import NodeSettings
from shared.method.settings import BasisSettings, MethodSettings, method_settings
from shared.method.tensors import EXCHANGES
from shared.protocol.signing.invitation import FederationOut, Invitation
from shared.strategies import STRATEGIES, build_strategy
from shared.strategies.agreement import declare_federation, find_task
from simulation.joining.join import SiloFolder, silo_values
from simulation.joining.silo_toml import (
    SiloChoices,
    apply_policy,
    describe_missing,
    method_table,
    parse_policy,
    require_catalogue,
    require_masked_sums,
    write_toml,
)

SIZE = {"users": 1, "items": 2, "edges": 3}
BESIDE: dict[str, dict[str, Any]] = {
    "aggregate": {"tolerated": 1},
    "tolerated": {"aggregate": "trimmed_mean"},
    "krum_kept": {"aggregate": "krum", "tolerated": 1},
    "start": {"basis": {"kind": "exact"}},
}
"""Values without which one of a field is refused."""


def values_of(annotation: Any, field: Any) -> Iterator[Any]:
    """Values that a field of this type may have, the limits among them."""
    options = [one for one in typing.get_args(annotation) if one is not type(None)]
    if typing.get_origin(annotation) is typing.Literal:
        yield from typing.get_args(annotation)
    elif type(None) in typing.get_args(annotation):
        yield from values_of(options[0], field)
    elif annotation is bool:
        yield from (True, False)
    elif annotation is str:
        yield from EXCHANGES
    elif typing.get_origin(annotation) is tuple:
        yield from (("amount",), ("country=Österreich", 'odd "name" \\ ', "b"))
    else:
        limits = [
            getattr(one, side) for one in field.metadata for side in ("ge", "gt", "le", "lt") if hasattr(one, side)
        ]
        inner = [limit + step for limit in limits for step in (0, 1, -1, 0.03125, -0.03125)] + [0.1, 1e-5]
        yield from ([int(one) for one in inner] if annotation is int else map(float, inner))


def leaves(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from leaves(kind, (*path, name))
        elif name not in ("strategy", "sums"):
            yield (*path, name)


def with_value(path: tuple[str, ...], value: Any) -> MethodSettings | None:
    """Settings with this value; None where it is refused, or is what the settings have without it."""
    changed: dict[str, Any] = {path[-1]: value}
    if path[0] == "basis" and path != ("basis", "kind"):
        changed["kind"] = "exact"
    values = {path[0]: changed} if len(path) > 1 else {**BESIDE.get(path[0], {}), **changed}
    try:
        return MethodSettings.model_validate(values)
    except ValidationError:
        return None


FIELDS = list(leaves(MethodSettings))


@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_each_setting_of_the_method_comes_back_as_it_was(path: tuple[str, ...]) -> None:
    model: Any = MethodSettings
    for name in path[:-1]:
        model = model.model_fields[name].annotation
    field, tried = model.model_fields[path[-1]], 0
    for value in values_of(field.annotation, field):
        method = with_value(path, value)
        if method is not None:
            tried += 1
            text = write_toml({"method": method_table(method)})
            assert MethodSettings.model_validate(tomllib.loads(text)["method"]) == method, value
    assert tried > 1


def test_further_sums_come_back_as_they_were() -> None:
    method = method_settings(**{"basis.kind": "transitions", "sums.items.kind": "exact", "sums.items.epsilon": 2.0})
    text = write_toml({"method": method_table(method)})
    assert MethodSettings.model_validate(tomllib.loads(text)["method"]) == method


def test_a_strategy_s_own_settings_come_back_as_they_were() -> None:
    method = MethodSettings(strategy={"mu": 5, "train": False, "kind": "a \x7f b", "odd name": 1e-5})
    text = write_toml({"method": method_table(method)})
    assert MethodSettings.model_validate(tomllib.loads(text)["method"]) == method


def invitation(federation: FederationOut) -> Invitation:
    return Invitation(
        name="north",
        url="http://127.0.0.1:8800",
        code="c" * 43,
        expires=datetime.now(UTC) + timedelta(days=1),
        aggregator="ab" * 32,
        federation=federation,
        members=("north", "south", "west") if federation.secure else (),
    )


NODES = NodeSettings(features=3, classes=2)


def federations() -> Iterator[tuple[str, FederationOut]]:
    """Every strategy, open and secure, with every model that it trains, with and without a basis, where these go."""
    for name in STRATEGIES:
        for model in EXCHANGES:
            for secure in (False, True):
                for kind in ("off", "exact", "iterated"):
                    try:
                        sums = BasisSettings(kind=kind)
                        method = MethodSettings(model=model, catalogue=7, basis=sums, nodes=NODES)
                        strategy = build_strategy(name, method)
                        declare_federation(strategy, method, secure=secure)
                        task = find_task(strategy, method)
                    except (SettingsError, ValidationError):
                        continue
                    words = f"{name} {model} {kind} {'secure' if secure else 'open'}"
                    yield words, FederationOut(strategy=name, task=task, secure=secure, method=method)


FEDERATIONS = dict(federations())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_silo_that_agrees_starts_with_the_very_settings_of_the_aggregator(strategy: str, tmp_path: Path) -> None:
    found = {words: one for words, one in FEDERATIONS.items() if one.strategy == strategy}
    assert found
    listed = tmp_path / "catalogue.txt"
    listed.write_text("".join(f"item-{number}\n" for number in range(7)))
    for words, federation in found.items():
        needs = needed(federation)
        agreed = apply_policy(federation, parse_policy(needs))
        assert not agreed.missing, words
        require_catalogue(agreed, listed)
        choices = SiloChoices(agreed.policy, listed, 8899)
        folder = SiloFolder(tmp_path / "north")
        values = silo_values(folder, invitation(federation), agreed, choices, members=("north", "south"))
        for name in ("application_key_file", "operator_key_file"):
            del values[name]
        file = tmp_path / "silo.toml"
        file.write_text(write_toml(values), encoding="utf-8")
        settings = client_settings(file)
        assert (settings.strategy, settings.task, settings.secure) == (strategy, federation.task, federation.secure)
        assert settings.method == federation.method, words
        assert settings.declaration() == declare_federation(
            build_strategy(strategy, federation.method), federation.method, secure=federation.secure
        )


def needed(federation: FederationOut) -> dict[str, str]:
    """What `--policy` has to say, found as a silo would find it: by what it is told."""
    said: dict[str, str] = {}
    for _ in range(3):
        try:
            missing = apply_policy(federation, parse_policy(said)).missing
        except PrivacyError as error:
            flags = [word.removeprefix("--policy ") for word in str(error).split("agrees with ")[1].split(" --policy ")]
            said |= dict(flag.removeprefix("--policy ").split("=", 1) for flag in flags)
        else:
            said |= {name: str(value) for name, value in missing.items()}
    return said


def test_without_the_silo_s_word_nothing_of_its_policy_is_switched_on(tmp_path: Path) -> None:
    method = MethodSettings(catalogue=7, basis=BasisSettings(kind="iterated", rank=3), start="common")
    federation = FederationOut(strategy="lpsfed", secure=True, method=method)
    agreed = apply_policy(federation, {})
    assert agreed.federation.method.basis.kind == "off" and agreed.federation.method.start == "exact"
    assert agreed.policy == {} and agreed.missing == {"common_basis": "secure"} and not agreed.needs_catalogue
    told = describe_missing("north", agreed, "x 1.2 by its own forecast")
    assert "--accept sums" in told and "forgoes: x 1.2" in told and "refuses it" in told
    require_masked_sums(agreed.missing)
    in_the_open = apply_policy(federation.model_copy(update={"secure": False}), {})
    assert "--policy common_basis=open" in describe_missing("north", in_the_open, "it")
    with pytest.raises(SettingsError, match=r"--accept sums: expected a secure federation.*--policy common_basis=open"):
        require_masked_sums(in_the_open.missing)
    with pytest.raises(SettingsError, match="expected the list of the federation's 7 items, one id a line, got none"):
        require_catalogue(apply_policy(federation, {"common_basis": "secure"}), None)
    short = tmp_path / "short.txt"
    short.write_text("a\nb\nb\n")
    with pytest.raises(SettingsError, match="got 3, 2 of them different"):
        require_catalogue(apply_policy(federation, {"common_basis": "secure"}), short)
    with pytest.raises(PrivacyError, match=r"the silo agrees with --policy strategies=fedmf"):
        apply_policy(FederationOut(strategy="fedmf", secure=False, method=MethodSettings(catalogue=7)), {})


@pytest.mark.parametrize(
    ("epsilon", "needed"),
    [
        (None, {"common_basis": "secure"}),
        (1.0, {"common_basis": "noised"}),
        (9.0, {"common_basis": "noised", "basis_budget": 9.0}),
    ],
)
def test_the_least_that_a_basis_needs_is_named(epsilon: float | None, needed: dict[str, Any]) -> None:
    method = MethodSettings(catalogue=7, basis=BasisSettings(kind="exact", epsilon=epsilon))
    assert apply_policy(FederationOut(strategy="lpsfed", secure=True, method=method), {}).missing == needed


@pytest.mark.parametrize(
    ("pairs", "values"),
    [
        ({"common_basis": "open"}, {"common_basis": "open"}),
        (
            {"strategies": "fedavg,fedmf", "item_tables": "true"},
            {"strategies": ["fedavg", "fedmf"], "item_tables": True},
        ),
        (
            {"anchor_size": '{"users": 1, "items": 2, "edges": 3}'},
            {"anchor_size": {"users": 1, "items": 2, "edges": 3}},
        ),
    ],
)
def test_a_policy_is_read_from_words(pairs: dict[str, str], values: dict[str, Any]) -> None:
    assert parse_policy(pairs) == values


@pytest.mark.parametrize("wrong", [{"common_bases": "open"}, {"common_basis": "maybe"}, {"anchor_size": "{"}])
def test_what_is_no_policy_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match="--policy: "):
        parse_policy(wrong)


def test_any_text_is_written_as_toml_reads_it() -> None:
    odd = {"a b": "\x7f\u2028\"\\\n'", "table": {"x.y": {"deep": [1, 2.5, True, "é"]}, "flat": 1e-07}, "plain": -3}
    assert tomllib.loads(write_toml(odd)) == odd
