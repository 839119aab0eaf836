"""A silo's join: its folder of keys, shard, pinned keys and settings.

What is there already is kept, so that the same command resumes after an interruption. silo.toml is written last: a
folder with it belongs to a silo that has joined.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from pydantic import ValidationError

from client_service.data.digests import list_digest
from client_service.data.files import read_lines
from client_service.data.shard_head import load_rating_scale
from client_service.settings import read_outbound_proxy
from shared.errors import (
    AuthenticationError,
    ConflictError,
    FederationError,
    ProtocolError,
    SettingsError,
    UnavailableError,
)
from shared.files import PUBLIC, create_secret, replace_file
from shared.protocol.problem import ProblemOut
from shared.protocol.signing.enrolment import KeyFiles, ensure_key_pair
from shared.protocol.signing.invitation import (
    EnrolmentOut,
    FederationOut,
    Invitation,
    describe_other_federation,
    enrolment_digest,
    prove_enrolment,
    unpack_items,
)
from shared.protocol.signing.keys import public_key, read_private, read_public
from shared.protocol.signing.members import Registry
from shared.protocol.signing.responses import require_answer
from shared.web.outgoing import OutgoingTls, describe_call_failure, describe_tls_failure
from simulation.joining.own_data import USUAL_TASK, own_data_of
from simulation.joining.silo_toml import (
    AgreedSettings,
    SiloChoices,
    apply_policy,
    method_table,
    read_toml,
    require_startable,
    write_toml,
)
from simulation.ports import free_port_from

CALL_SECONDS = 30.0
FIRST_PORT = 8801
FEDERATION_SETTINGS = ("task", "strategy", "secure", "catalogue", "method")
"""Settings that the federation decides."""
TRUST_SETTINGS = ("members", "trust_on_first_use", "aggregator_key", "known_members")
"""Settings that pin keys of aggregator and members."""
SETTINGS, MEMBERS, AUTHORITY = "silo.toml", "members.toml", "aggregator-authority.crt"
APPLICATION, OPERATOR, CATALOGUE, EARLIER = "application.key", "operator.key", "catalogue.txt", "silo.toml.earlier"


@dataclass(frozen=True)
class SiloFolder:
    """Folder of one silo's files."""

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


def require_unexpired(invitation: Invitation, folder: SiloFolder) -> None:
    """Raises SettingsError for an invitation that has expired.

    A silo that has made its key may have registered it before, so that it asks the aggregator all the same.
    """
    if KeyFiles.of(invitation.name, folder.state).private.exists():
        return
    if invitation.expires <= datetime.now(UTC):
        expired = f"it expired at {invitation.expires.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        raise SettingsError(f"invitation: expected one that is open, {expired}: ask the operator for another one")


def require_same_silo(invitation: Invitation, folder: SiloFolder) -> dict[str, Any]:
    """Reads silo.toml, and raises ConflictError for another silo's or federation's folder."""
    values = read_toml(folder.settings)
    for field, expected in (("name", invitation.name), ("aggregator_url", invitation.url)):
        if (found := values.get(field)) != expected:
            words = f"expected a folder of the silo that is invited, {field} {expected!r}, got {found!r}"
            raise ConflictError(f"{folder.settings}: {words}; --folder names another one")
    return values


def enrol_silo(invitation: Invitation, folder: SiloFolder) -> EnrolmentOut:
    """Makes the silo's keys and registers the public one with the invitation's code.

    Raises AuthenticationError for a code that is used or expired, UnavailableError for an aggregator that does not
    answer, or an answer that it has not signed, and ProtocolError for another federation than the invitation
    describes.
    """
    pair = ensure_key_pair(invitation.name, folder.state)
    _save_authority(invitation, folder)
    message = prove_enrolment(invitation, read_private(pair.private))
    with _open_http(invitation, folder) as http:
        try:
            answer = http.post("/v1/enrolments", json=message.model_dump())
        except httpx.TransportError as error:
            expected = f"{invitation.url}: expected the aggregator"
            if refused := describe_tls_failure(error):
                raise SettingsError(f"{expected}, but {refused}") from None
            raise UnavailableError(f"{expected}, got {describe_call_failure(error)}") from None
    _require_signed(answer, invitation, enrolment_digest(message))
    enrolled = _read_enrolment(answer, invitation)
    other = None if invitation.federation is None else describe_other_federation(invitation.federation, enrolled)
    if other is not None or enrolled.name != invitation.name:
        difference = other or f"name: expected {invitation.name!r}, got {enrolled.name!r}"
        words = "expected the federation of the invitation"
        raise ProtocolError(f"{invitation.url}: {words}; {difference}; ask the operator for a new invitation")
    return enrolled


def _open_http(invitation: Invitation, folder: SiloFolder) -> httpx.Client:
    authority = folder.path / AUTHORITY if invitation.authority else None
    verify, proxy = (
        OutgoingTls(authority).context,
        read_outbound_proxy(folder.settings if folder.settings.exists() else None),
    )
    return httpx.Client(base_url=invitation.url, timeout=CALL_SECONDS, trust_env=False, verify=verify, proxy=proxy)


def _require_signed(answer: httpx.Response, invitation: Invitation, request_signature: str) -> None:
    """Raises UnavailableError for an answer that the invitation's aggregator has not signed.

    The signature must be of the answer to this very message.
    """
    key, sha256 = public_key(bytes.fromhex(invitation.aggregator)), hashlib.sha256(answer.content).digest()
    try:
        require_answer(answer.status_code, answer.headers.items(), sha256, request_signature, key)
    except UnavailableError as error:
        words = "it is an aggregator of another version, or another machine answers in its place"
        raise UnavailableError(f"{invitation.url}: {error}, with status {answer.status_code}: {words}") from None


def _read_enrolment(answer: httpx.Response, invitation: Invitation) -> EnrolmentOut:
    try:
        if answer.is_success:
            return EnrolmentOut.model_validate_json(answer.content)
        detail = ProblemOut.model_validate_json(answer.content).detail
    except ValidationError:
        raise ProtocolError(f"{invitation.url}: expected an aggregator of this version, got another answer") from None
    kind = AuthenticationError if answer.status_code == httpx.codes.UNAUTHORIZED else FederationError
    raise kind(f"{invitation.url}: {detail}")


def _save_authority(invitation: Invitation, folder: SiloFolder) -> None:
    if invitation.authority is not None:
        replace_file(folder.path / AUTHORITY, invitation.authority.encode(), PUBLIC)


def choose_catalogue(
    invitation: Invitation, folder: SiloFolder, federation: FederationOut, choices: SiloChoices
) -> Path | None:
    """Returns the list of items: the given one, the invitation's, or an earlier call's.

    Raises SettingsError for another list than the federation's.
    """
    carried, own = unpack_items(invitation), folder.path / CATALOGUE
    if not apply_policy(federation, choices.policy).needs_catalogue:
        return choices.catalogue
    if choices.catalogue is None and carried is not None:
        replace_file(own, carried, PUBLIC)
        return own
    path = choices.catalogue or (own if own.exists() else None)
    expected = federation.items_sha256
    if path is not None and expected is not None and (found := list_digest(read_lines(path))) != expected:
        words = f"expected the federation's list, sha256 {expected}, got {found}"
        raise SettingsError(f"--catalogue: {words}: the invitation carries it, leave the flag out")
    return path


def copy_catalogue(folder: SiloFolder, agreed: AgreedSettings, given: Path | None) -> Path | None:
    """Copies the list of items into the silo's folder; None if the silo needs none."""
    own = folder.path / CATALOGUE
    if not agreed.needs_catalogue or given is None:
        return None
    if not (own.exists() and given.samefile(own)):
        replace_file(own, given.read_bytes(), PUBLIC)
    return own


def sign_own_matches(folder: SiloFolder, given: Path | None) -> None:
    """Signs and saves the matches of own items. Raises DataError for duplicates."""
    if given is None:
        return
    from client_service.data.item_matches import NAME, is_signed, read_matches, sign_matches
    from simulation.partitioning.item_matches import read_proposals

    own = folder.path / NAME
    if not (own.exists() and given.samefile(own)):
        sign_matches(read_matches(given) if is_signed(given) else read_proposals(given), own)


def require_usable(folder: SiloFolder, invitation: Invitation, agreed: AgreedSettings, choices: SiloChoices) -> None:
    """Checks, before anything is registered, that the client would start with these settings.

    Raises SettingsError, DataError or PrivacyError.
    """
    for name in (APPLICATION, OPERATOR):
        create_secret(folder.path / name)
    settings = require_startable(silo_values(folder, invitation, agreed, choices, members=()))
    if settings.catalogue is not None:
        from client_service.tasks import task_named  # imports torch, which other joins do not need

        task_named(settings.task).read(settings)


def write_settings(
    invitation: Invitation, folder: SiloFolder, enrolled: EnrolmentOut, agreed: AgreedSettings, choices: SiloChoices
) -> None:
    """Writes the pinned keys and, last, silo.toml. The silo's own changes to it stay."""
    own = read_public(KeyFiles.of(invitation.name, folder.state).public)
    registry = Registry(public_key(bytes.fromhex(invitation.aggregator)), {invitation.name: own})
    members = tuple(sorted({*invitation.members, *enrolled.members}))
    values = silo_values(folder, invitation, agreed, choices, members=members)
    if folder.settings.exists():
        return replace_settings(folder, _merge_settings(read_toml(folder.settings), values))
    replace_file(folder.path / MEMBERS, registry.to_toml().encode(), PUBLIC)
    replace_settings(folder, values)


def replace_settings(folder: SiloFolder, values: dict[str, Any]) -> None:
    """Replaces silo.toml, and keeps the earlier one beside it.

    Raises SettingsError if the client would not start.
    """
    require_startable(values)
    if folder.settings.exists():
        shutil.copyfile(folder.settings, folder.path / EARLIER)
    replace_file(folder.settings, write_toml(values).encode(), PUBLIC)


def renew_least_rating(folder: SiloFolder, *, rated: bool) -> None:
    """Writes the least rating of the present shard into silo.toml."""
    values = read_toml(folder.settings)
    rating = load_rating_scale(folder.shard) if rated else None
    renewed = {name: value for name, value in values.items() if name != "least_rating"}
    renewed |= {"least_rating": rating.least} if rating is not None else {}
    if renewed != values:
        replace_settings(folder, renewed)


def _merge_settings(earlier: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Updates the values of the federation; the silo's own values and pinned keys stay."""
    same_way = bool(earlier.get("secure")) == bool(values.get("secure"))
    renewed = FEDERATION_SETTINGS if same_way else (*FEDERATION_SETTINGS, *TRUST_SETTINGS)
    kept = {name: value for name, value in earlier.items() if name not in renewed}
    added = {
        name: value
        for name, value in values.items()
        if name not in kept and (name not in TRUST_SETTINGS or not same_way)
    }
    return {**kept, **added, **({"policy": values["policy"]} if "policy" in values else {})}


def silo_values(
    folder: SiloFolder,
    invitation: Invitation,
    agreed: AgreedSettings,
    choices: SiloChoices,
    *,
    members: tuple[str, ...],
) -> dict[str, Any]:
    """Returns the values of silo.toml, tables last."""
    path, federation = folder.path.resolve(), agreed.federation
    own = own_data_of(federation.task)
    catalogue, method = agreed.needs_catalogue and choices.catalogue is not None, method_table(federation.method)
    rating = load_rating_scale(folder.shard) if own.rated else None
    return {
        "name": invitation.name,
        "shard": str(path / folder.shard.name),
        "state_directory": str(path / folder.state.name),
        "application_key_file": str(path / APPLICATION),
        "operator_key_file": str(path / OPERATOR),
        "aggregator_url": invitation.url,
        **({"aggregator_authority": str(path / AUTHORITY)} if invitation.authority else {}),
        **({"task": federation.task} if federation.task != USUAL_TASK else {}),
        "strategy": federation.strategy,
        **({"fit_everything": True} if own.refits else {}),
        **_trust_settings(path, invitation, federation, members),
        **({"catalogue": str(path / CATALOGUE)} if catalogue else {}),
        **_matches_setting(path, choices),
        **({"least_rating": rating.least} if rating is not None else {}),
        "port": choices.port or free_port_from(FIRST_PORT),
        **({"policy": dict(agreed.policy)} if agreed.policy else {}),
        **({"method": method} if method else {}),
    }


def _matches_setting(path: Path, choices: SiloChoices) -> dict[str, Any]:
    if choices.matches is None:
        return {}
    from client_service.data.item_matches import NAME  # imports polars, which other joins do not need

    return {"matches": str(path / NAME)}


def _trust_settings(
    path: Path, invitation: Invitation, federation: FederationOut, members: tuple[str, ...]
) -> dict[str, Any]:
    """Returns the settings that pin keys.

    The aggregator's key comes with the invitation; silos' keys are pinned in the first secure run.
    """
    if not federation.secure:
        return {"members": str(path / MEMBERS)}
    known = {"known_members": list(members)} if members else {}
    return {"secure": True, "trust_on_first_use": True, "aggregator_key": invitation.aggregator, **known}
