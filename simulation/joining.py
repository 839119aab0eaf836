"""An invitation and a silo's own data -> a folder from which its client serves: keys, shard, pinned keys, settings.

Everything that is there already stays, so that whatever was cut off is gone on with by doing it again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import polars as pl
from pydantic import ValidationError

from client_service.shard import build_shard, read_shard, save_shard, shard_head
from client_service.shard.files import replace_file
from client_service.shard.storage import ShardHead
from shared.errors import AuthenticationError, FederationError, ProtocolError, SettingsError, UnavailableError
from shared.method.settings import MethodSettings
from shared.new_files import PUBLIC, create_secret, write_new
from shared.protocol.problem import ProblemOut
from shared.protocol.schemas import EnrolmentOut
from shared.protocol.signing.enrolment import KeyFiles, kept_pair
from shared.protocol.signing.invitation import EnrolmentIn, Invitation
from shared.protocol.signing.keys import public_key, raw_hex, read_public
from shared.protocol.signing.registry import Registry
from shared.web.calling import Calling, failure, reason
from simulation.datasets import Dataset
from simulation.processes import free_port_from

CALL_SECONDS = 30.0
COMMENT = "# Written by `lpsfed join`. It is yours: the README lists what else a client can be told.\n"
FIRST_PORT = 8801
SETTINGS, MEMBERS, AUTHORITY = "silo.toml", "members.toml", "aggregator-authority.crt"
APPLICATION, OPERATOR = "application.key", "operator.key"


@dataclass(frozen=True)
class SiloFolder:
    """Where everything of one silo lies."""

    path: Path

    @property
    def settings(self) -> Path:
        return self.path / SETTINGS

    @property
    def state(self) -> Path:
        return self.path / "state"

    @property
    def shard(self) -> Path:
        return self.path / "shard"


def require_open(invitation: Invitation) -> None:
    """SettingsError for one that has expired."""
    if invitation.expires <= datetime.now(UTC):
        raise SettingsError(f"invitation: expected one that is open, it expired at {invitation.expires:%Y-%m-%d %H:%M}")


def keep_shard(folder: SiloFolder, name: str, dataset: Dataset) -> ShardHead:
    """The data set as the silo's shard, whole: also a pair whose item occurs in no training pair, for who else has an
    item must not decide what counts of a user."""
    items = pl.DataFrame({"item": dataset.events["item"].unique().sort()})
    if dataset.titles is not None:
        items = items.join(dataset.titles, on="item", how="left")
    return save_shard(folder.shard, build_shard(name, dataset.all_events(), items, dataset.notes))


def kept_shard(folder: SiloFolder) -> ShardHead | None:
    """The head of the shard that an earlier call has made; None where there is none."""
    return shard_head(read_shard(folder.shard)) if folder.shard.exists() else None


def enrol_silo(invitation: Invitation, folder: SiloFolder) -> EnrolmentOut:
    """Make the silo's keys and register the public one by the invitation's code.

    AuthenticationError for a code that is used or has expired, UnavailableError for an aggregator that is not there.
    """
    pair = kept_pair(invitation.name, folder.state)
    _keep_authority(invitation, folder)
    key = raw_hex(read_public(pair.public))
    message = EnrolmentIn(name=invitation.name, code=invitation.code, key=key)
    with _calling(invitation, folder) as http:
        try:
            answer = http.post("/v1/enrolments", json=message.model_dump())
        except httpx.TransportError as error:
            expected = f"{invitation.url}: expected the aggregator"
            if refused := failure(error):
                raise SettingsError(f"{expected}, but {refused}") from None
            raise UnavailableError(f"{expected}, got {reason(error)}") from None
    return _read_enrolment(answer, invitation)


def _calling(invitation: Invitation, folder: SiloFolder) -> httpx.Client:
    authority = folder.path / AUTHORITY if invitation.authority else None
    verify = Calling(authority).context
    return httpx.Client(base_url=invitation.url, timeout=CALL_SECONDS, trust_env=False, verify=verify)


def _read_enrolment(answer: httpx.Response, invitation: Invitation) -> EnrolmentOut:
    try:
        if answer.is_success:
            return EnrolmentOut.model_validate_json(answer.content)
        detail = ProblemOut.model_validate_json(answer.content).detail
    except ValidationError:
        raise ProtocolError(f"{invitation.url}: expected an aggregator, got another answer") from None
    kind = AuthenticationError if answer.status_code == httpx.codes.UNAUTHORIZED else FederationError
    raise kind(f"{invitation.url}: {detail}")


def _keep_authority(invitation: Invitation, folder: SiloFolder) -> None:
    if invitation.authority is not None:
        write_new(folder.path / AUTHORITY, invitation.authority.encode(), PUBLIC)


def write_settings(
    invitation: Invitation, folder: SiloFolder, enrolled: EnrolmentOut, changes: Mapping[str, Any]
) -> None:
    """Pinned keys, secrets and silo.toml, which is left as it is where there is one: it is the silo's to change."""
    for name in (APPLICATION, OPERATOR):
        create_secret(folder.path / name)
    own = read_public(KeyFiles.of(invitation.name, folder.state).public)
    registry = Registry(public_key(bytes.fromhex(invitation.aggregator)), {invitation.name: own})
    write_new(folder.path / MEMBERS, registry.to_toml().encode(), PUBLIC)
    if not folder.settings.exists():
        replace_file(folder.settings, _settings_text(invitation, folder, enrolled, changes).encode())


def _settings_text(
    invitation: Invitation, folder: SiloFolder, enrolled: EnrolmentOut, changes: Mapping[str, Any]
) -> str:
    path = folder.path.resolve()
    values: dict[str, Any] = {
        "name": invitation.name,
        "shard": str(path / folder.shard.name),
        "state_directory": str(path / folder.state.name),
        "application_key_file": str(path / APPLICATION),
        "operator_key_file": str(path / OPERATOR),
        "aggregator_url": invitation.url,
        **({"aggregator_authority": str(path / AUTHORITY)} if invitation.authority else {}),
        "strategy": enrolled.strategy,
        **({"secure": True, "trust_on_first_use": True} if enrolled.secure else {"members": str(path / MEMBERS)}),
        "port": free_port_from(FIRST_PORT),
        **changes,
    }
    usual = MethodSettings().model_dump(mode="json")
    method = {k: v for k, v in enrolled.method.model_dump(mode="json").items() if v != usual[k] and v is not None}
    lines = [f"{name} = {_toml(value)}\n" for name, value in values.items()]
    own = f"\n[method] # as the federation's\n{_table(method)}" if method else ""
    return f"{COMMENT}{''.join(lines)}{own}"


def _table(values: Mapping[str, Any]) -> str:
    return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items() if value is not None)


def _toml(value: Any) -> str:
    """A value as TOML has it: strings, numbers and lists as JSON has them, a table in one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml(one)}" for name, one in value.items() if one is not None) + "}"
    return json.dumps(value, ensure_ascii=False)
