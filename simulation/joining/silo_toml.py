"""silo.toml: settings of a silo's client, from the federation and the silo's policy."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from client_service.boundary.policy import Policy, allowed_declaration
from client_service.data.files import read_lines
from client_service.settings import ClientSettings, client_settings
from shared.errors import DataError, PrivacyError, SettingsError
from shared.method.settings import BasisSettings, MethodSettings, describe_validation_error
from shared.protocol.lengths import least_update
from shared.protocol.signing.invitation import FederationOut
from shared.strategies import SHARES_ITEMS, build_strategy
from shared.strategies.agreement import declare_federation
from shared.sums import WORDS, find_sum, list_sums, method_of_part, needs_list
from simulation.joining.own_data import own_data_of

COMMENT = "# Written by `lpsfed join`. You may edit it: docs/settings.md lists all settings.\n"


@dataclass(frozen=True)
class SiloChoices:
    """Choices that the silo alone makes.

    policy: given values; the others have their defaults. catalogue: the list of the federation's items. matches:
    which of the silo's own items are which of that list. allow_http: whether a distant aggregator may be called by
    plain http.
    """

    policy: Mapping[str, Any] = field(default_factory=dict)
    catalogue: Path | None = None
    matches: Path | None = None
    port: int | None = None
    allow_http: bool = False


@dataclass(frozen=True)
class AgreedSettings:
    """The federation as this silo takes part in it.

    missing: values that the policy lacks for the federation's sums.
    """

    federation: FederationOut
    policy: Mapping[str, Any]
    missing: Mapping[str, Any]

    @property
    def needs_catalogue(self) -> bool:
        """Whether the silo must know the list of items that all silos share."""
        method = self.federation.method
        shares = build_strategy(self.federation.strategy, method).shares_items(method)
        return shares or needs_list(method) or own_data_of(self.federation.task).listed


def parse_policy(pairs: Mapping[str, str]) -> dict[str, Any]:
    """Parses texts such as common_basis=secure into values of a policy.

    Raises SettingsError for an unknown name or an invalid value.
    """
    known = Policy.model_fields
    if unknown := [name for name in pairs if name not in known]:
        raise SettingsError(f"--policy: expected one of {', '.join(known)}, got {unknown[0]!r}")
    values = {name: _parse_value(name, text) for name, text in pairs.items()}
    try:
        found = Policy.model_validate(values).model_dump(mode="json")
    except ValidationError as error:
        raise SettingsError(f"--policy: {describe_validation_error(error)}") from None
    return {name: found[name] for name in values}


def _parse_value(name: str, text: str) -> Any:
    """Parses JSON, or words divided by commas where the policy has several."""
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            raise SettingsError(f"--policy: expected JSON for {name}, got {text!r}") from None
    return text.split(",") if isinstance(Policy.model_fields[name].default, tuple) else text


def apply_policy(federation: FederationOut, policy: Mapping[str, Any]) -> AgreedSettings:
    """Returns the federation as a silo with this policy takes part in it.

    Without sums, unless the policy allows all of them. Raises PrivacyError if the policy forbids what is left.
    """
    strict = federation.model_copy(update={"method": _remove_sums(federation.method)})
    if needed := _find_missing_policy(strict, policy):
        raise PrivacyError(
            f"policy: expected {_describe_policy(needed)}, because this federation's {federation.strategy!r} needs it;"
            f" the silo agrees with {_policy_flags(needed)}"
        )
    missing = _find_missing_policy(federation, policy)
    agreed = AgreedSettings(strict if missing else federation, policy, missing)
    method, secure = agreed.federation.method, federation.secure
    allowed_declaration(
        build_strategy(federation.strategy, method), method, Policy.model_validate(dict(policy)), secure=secure
    )
    return agreed


def _remove_sums(method: MethodSettings) -> MethodSettings:
    if not list_sums(method):
        return method
    start = "exact" if method.start == "common" else method.start
    return method.model_copy(update={"basis": BasisSettings(), "sums": {}, "start": start})


def _find_missing_policy(federation: FederationOut, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values that the policy lacks for the silo to take part."""
    policy, method = Policy.model_validate(dict(given)), federation.method
    strategy = build_strategy(federation.strategy, method)
    needed: dict[str, Any] = {}
    if strategy.name not in policy.strategies:
        needed["strategies"] = [strategy.name]
    if strategy.shares_items(method) and strategy.name not in SHARES_ITEMS and not policy.item_tables:
        needed["item_tables"] = True
    if not set(strategy.scalars) <= set(policy.scalars):
        needed["scalars"] = sorted(strategy.scalars)
    for part in list_sums(method):
        needed |= _find_missing_for_sum(policy, method_of_part(method, part), secure=federation.secure)
    parts = declare_federation(strategy, method, secure=federation.secure).parts
    if (least := max(map(least_update, parts))) > policy.max_upload_bytes:
        needed["max_upload_bytes"] = least
    return needed


def _find_missing_for_sum(policy: Policy, method: MethodSettings, *, secure: bool) -> dict[str, Any]:
    basis, word = method.basis, find_sum(method).word
    noised = secure and basis.epsilon is not None
    enough = ("open", "secure", "noised") if noised else ("open", "secure") if secure else ("open",)
    needed: dict[str, Any] = {} if getattr(policy, word) in enough else {word: enough[-1]}
    if noised and basis.epsilon is not None and basis.epsilon > policy.basis_budget:
        needed["basis_budget"] = basis.epsilon
    return needed


def describe_missing(name: str, agreed: AgreedSettings, forgone: str) -> str:
    """Describes in one line how a silo without the sums fares, and how it agrees.

    forgone: what that costs it.
    """
    flags = _policy_flags(agreed.missing)
    open_sums = needs_open_sums(agreed.missing)
    how = f"{flags} --catalogue FILE" if open_sums else "--accept sums"
    return (
        f"{name}: this silo's policy does not allow the federation's sums: it stays in the strict boundary, the"
        f" aggregator refuses it, and it answers with popular items. It forgoes: {forgone}. To agree, run the same"
        f" command with {how}"
    )


def needs_open_sums(missing: Mapping[str, Any]) -> bool:
    """Tells whether these further values would let sums leave unmasked."""
    return any(missing.get(word) == "open" for word in WORDS)


def require_masked_sums(missing: Mapping[str, Any]) -> None:
    """Raises SettingsError for unmasked sums, which need an explicit --policy."""
    if needs_open_sums(missing):
        words = "expected a secure federation, got one with open sums: the aggregator reads each silo's statistics"
        raise SettingsError(f"--accept sums: {words}; to agree, use {_policy_flags(missing)}")


def _describe_policy(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_toml_value(value)}" for name, value in values.items())


def _policy_flags(values: Mapping[str, Any]) -> str:
    return " ".join(f"--policy {name}={_flag_text(value)}" for name, value in values.items())


def _flag_text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def require_catalogue(agreed: AgreedSettings, catalogue: Path | None) -> None:
    """Raises SettingsError if a needed list of items is missing, or has another size."""
    size = agreed.federation.method.catalogue
    if not agreed.needs_catalogue:
        return
    if catalogue is None:
        raise SettingsError(f"--catalogue: expected the list of the federation's {size} items, one id a line, got none")
    try:
        lines = read_lines(catalogue)
    except DataError as error:
        raise SettingsError(f"--catalogue: expected a list of ids, one a line ({error})") from None
    if size != len(lines) or len(set(lines)) != len(lines):
        got = f"{len(lines)}, {len(set(lines))} of them different"
        raise SettingsError(f"--catalogue: expected the federation's {size} different items, one id a line, got {got}")


def method_table(method: MethodSettings) -> dict[str, Any]:
    """Returns the settings that differ from the defaults, nested ones as tables."""
    return _diff_settings(method.model_dump(mode="json"), MethodSettings().model_dump(mode="json"), method)


def _diff_settings(values: Mapping[str, Any], usual: Mapping[str, Any], model: Any) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if value is None or value == usual.get(name):
            continue
        group = getattr(model, name)
        if isinstance(value, dict) and not isinstance(group, dict):
            changed[name] = _diff_settings(value, type(group)().model_dump(mode="json"), group)
        else:
            changed[name] = value
    return changed


def write_toml(values: Mapping[str, Any], comment: str = COMMENT) -> str:
    """Formats values as TOML: simple ones first, then a table per nested value."""
    return comment + "\n".join(_table_lines(values, ())) + "\n"


def _table_lines(values: Mapping[str, Any], path: Sequence[str]) -> list[str]:
    simple = {name: value for name, value in values.items() if value is not None and not isinstance(value, Mapping)}
    lines = [f"{_toml_key(name)} = {_toml_value(value)}" for name, value in simple.items()]
    for name, value in values.items():
        if isinstance(value, Mapping):
            inner = (*path, _toml_key(name))
            lines += ["", f"[{'.'.join(inner)}]", *_table_lines(value, inner)]
    return lines


def _toml_key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else _toml_value(name)


def _toml_value(value: Any) -> str:
    """Formats strings, numbers and lists as JSON, and escapes the one character that TOML forbids."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def read_toml(file: Path) -> dict[str, Any]:
    """Reads silo.toml. Raises DataError for an invalid file."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{file}: expected the settings that `lpsfed join` has written ({error})") from None


def require_startable(values: Mapping[str, Any]) -> ClientSettings:
    """Checks that a client would start with these settings, and returns them.

    Raises SettingsError or PrivacyError if it would not.
    """
    settings = client_settings(**values)
    settings.declaration()
    return settings
