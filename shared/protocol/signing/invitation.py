"""Invitations: an operator invites a silo, which registers its key with the code.

An invitation is a file for one silo: where the aggregator is, which key its answers are signed with, what the
federation is, and a code that registers one key under one name, once, until it expires.

The code never leaves the silo. The silo sends a proof: an HMAC over its name, its public key, the aggregator's key
and a nonce, keyed by the code's digest, which is all that the aggregator's folder holds. So an attacker on the
network can register no key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from cryptography.exceptions import InvalidSignature
from pydantic import AwareDatetime, Field, ValidationError, model_validator

from shared.errors import AuthenticationError, ConflictError, NotFoundError, ProtocolError, SettingsError
from shared.files import PRIVATE, replace_file
from shared.message import Message
from shared.method.settings import MethodSettings
from shared.protocol.item_list import LONGEST_PACKED, ItemListOut, unpack_item_list
from shared.protocol.schemas import ClientName
from shared.protocol.signing.enrolment import (
    lock_folder,
    public_file,
    register_key,
    registered_key,
    registered_names,
    remove_key,
    require_name,
)
from shared.protocol.signing.keys import PrivateKey, PublicKey, public_key, raw_hex

FOLDER = "invited"  # folder of open invitations, in the folder of registered keys
CODE_BYTES = 32
LONGEST_INVITATION = LONGEST_PACKED + (2 << 20)  # bytes of its file
LONGEST_ENROLMENT = 1024  # bytes of the message that redeems an invitation
NONCE_BYTES = 16
PURPOSE = "lpsfed enrolment/2"  # prefix of proven and signed bytes, so that neither is valid elsewhere
REFUSED = "expected the code of an open invitation for this name: ask the operator for another one"

Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$", examples=["d7" * 32])]
Code = Annotated[
    str,
    Field(pattern="^[A-Za-z0-9_-]{43}$", repr=False, description="secret code of the invitation", examples=["c" * 43]),
]


class FederationOut(Message):
    """Settings of a federation's runs, for its silos."""

    strategy: str = Field(description="name of the strategy, such as lpsfed or fedavg", examples=["lpsfed"])
    task: str = Field("items", description="task that is learnt: items, sessions or nodes", examples=["items"])
    secure: bool = Field(description="whether updates must be masked")
    method: MethodSettings = Field(description="default settings of a run")
    items_sha256: Hex32 | None = Field(
        None,
        description="sha256 of the list of items in invitations",
        exclude_if=lambda digest: digest is None,
    )


class DeclaredOut(FederationOut):
    """Settings of the federation and the aggregator's public key, for its operator."""

    aggregator: Hex32 = Field(description="the aggregator's public key, which verifies its answers")


class EnrolmentOut(FederationOut):
    """Settings of the federation, for a silo whose key has been registered."""

    name: ClientName
    members: tuple[ClientName, ...] = Field(
        (), description="secure federations: names with a registered key or an open invitation"
    )


class Invitation(Message):
    """Invitation file for one silo.

    aggregator: its public key. authority: CA certificate (PEM) of the aggregator. federation: settings of its runs,
    with which the silo compares the aggregator's answer. members: in a secure federation, the names with a key or an
    invitation when this one was made. The first format, of earlier versions, has neither. items: the list of items
    that all silos share, if the aggregator has one.
    """

    format: Literal["lpsfed-invitation/1", "lpsfed-invitation/2"] = "lpsfed-invitation/2"
    name: ClientName
    url: str = Field(pattern=r"^https?://[^/?#]+$")
    code: Code
    expires: AwareDatetime
    aggregator: Hex32
    authority: str | None = Field(None, max_length=100_000)
    federation: FederationOut | None = None
    members: tuple[ClientName, ...] = Field((), max_length=10_000)
    items: ItemListOut | None = Field(None, exclude_if=lambda items: items is None)

    @model_validator(mode="after")
    def _require_federation(self) -> Self:
        if self.format != "lpsfed-invitation/1" and self.federation is None:
            raise ValueError(
                "federation: expected the settings of its runs, got none; ask the operator for a new invitation"
            )
        return self


class EnrolmentIn(Message):
    """Silo's request to register its key by an invitation, without the code.

    See `prove_enrolment`.
    """

    name: ClientName
    key: Hex32 = Field(description="the silo's own public key, of Ed25519, in hexadecimal")
    nonce: str = Field(pattern="^[0-9a-f]{32}$", description="random digits, new for each call", examples=["3f" * 16])
    proof: Hex32 = Field(
        description="HMAC-SHA256, keyed by the sha256 of the invitation's code, over name, key, aggregator's key, nonce"
    )
    signature: str = Field(
        pattern="^[0-9a-f]{128}$",
        description="signature by the silo's own key, over the same fields and the proof",
        examples=["5a" * 64],
    )


class InvitationIn(Message):
    """Operator's request for an invitation."""

    name: ClientName
    days: float = Field(7.0, gt=0, le=365, allow_inf_nan=False, description="days until the invitation expires")


class InvitationOut(Message):
    """New invitation, as the aggregator answers it. Its code appears only in this answer."""

    code: Code
    expires: AwareDatetime = Field(description="time from which the code is refused")
    aggregator: Hex32 = Field(description="the aggregator's public key, which verifies its answers")
    federation: FederationOut = Field(description="default settings of the federation's runs")
    members: tuple[ClientName, ...] = Field(
        (), description="secure federations: names with a registered key or an open invitation"
    )
    items: ItemListOut | None = Field(
        None,
        description="list of items that all silos share, if the aggregator has one",
        exclude_if=lambda items: items is None,
    )


class OpenInvitation(Message):
    """Invitation as the aggregator stores it. `digest`: sha256 of the code."""

    digest: Hex32
    expires: AwareDatetime


def open_invitation(name: str, folder: Path, days: float) -> tuple[str, datetime]:
    """Stores a new invitation for a name; returns its code and expiry.

    It replaces an earlier one. Raises ConflictError for a name that has a key already, SettingsError for what is no
    client's name.
    """
    require_without_key(name, folder)
    code, expires = secrets.token_urlsafe(CODE_BYTES), datetime.now(UTC) + timedelta(days=days)
    kept = OpenInvitation(digest=_digest(code), expires=expires)
    with lock_folder(folder / FOLDER):
        require_without_key(name, folder)  # the earlier invitation may have been used meanwhile
        try:
            replace_file(_open_file(name, folder), kept.model_dump_json().encode(), PRIVATE)
        except OSError as error:
            raise SettingsError(f"{folder}: expected a writable path ({error.strerror})") from None
    return code, expires


def require_without_key(name: str, folder: Path) -> None:
    """Raises ConflictError for a name that has a key already.

    SettingsError for what is no client's name.
    """
    if public_file(require_name(name), folder).exists():
        raise ConflictError(f"expected a name without a key, {name!r} has one: remove it first")


def remove_silo(name: str, folder: Path) -> None:
    """Removes a silo's key and its open invitation.

    Raises NotFoundError if it had neither.
    """
    path = _open_file(require_name(name), folder)
    if not path.parent.is_dir():  # no invitation was ever made there
        return remove_key(name, folder)
    with lock_folder(path.parent):  # an enrolment under way ends before, and no other begins meanwhile
        _remove_held(name, path, folder)


def _remove_held(name: str, path: Path, folder: Path) -> None:
    if invited := path.exists():
        path.unlink(missing_ok=True)  # before the key: else the code could register a key again
    try:
        remove_key(name, folder)
    except NotFoundError:
        if not invited:
            raise


def read_invitation(path: Path) -> Invitation:
    """Reads an invitation file; raises SettingsError, without the code, for another file."""
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_INVITATION + 1)
    except OSError as error:
        raise SettingsError(f"{path}: expected a readable invitation ({error.strerror})") from None
    if len(content) > LONGEST_INVITATION:
        raise SettingsError(
            f"{path}: expected an invitation of at most {LONGEST_INVITATION:,} bytes, got a longer file"
        )
    try:
        return Invitation.model_validate_json(content)
    except ValidationError as error:
        fields = sorted({str(entry["loc"][0]) if entry["loc"] else "format" for entry in error.errors()})
        words = f"expected an invitation of `lpsfed invite`, got wrong fields: {', '.join(fields)}"
        raise SettingsError(f"{path}: {words}; ask the operator for a new invitation") from None


def unpack_items(invitation: Invitation) -> bytes | None:
    """Unpacks the text of an invitation's list of items; None for none.

    Raises SettingsError for a list that is not the federation's, or not whole.
    """
    packed_list, federation = invitation.items, invitation.federation
    if packed_list is None:
        return None
    ours = None if federation is None else (federation.items_sha256, federation.method.catalogue)
    if ours != (packed_list.sha256, packed_list.items):
        expected = "expected the list that its federation names, by sha256 and number of items, got another one"
        raise SettingsError(f"the invitation's list of items: {expected}; ask the operator for a new invitation")
    return unpack_item_list(packed_list)


def prove_enrolment(invitation: Invitation, key: PrivateKey) -> EnrolmentIn:
    """Makes the message that redeems an invitation for this key, with a new nonce."""
    own, nonce = raw_hex(key.public_key()), secrets.token_hex(NONCE_BYTES)
    said = _proven_bytes(invitation.name, own, invitation.aggregator, nonce)
    proof = _prove(_digest(invitation.code), said)
    signature = key.sign(said + proof.encode()).hex()
    return EnrolmentIn(name=invitation.name, key=own, nonce=nonce, proof=proof, signature=signature)


def enrolment_digest(message: EnrolmentIn) -> str:
    """Returns the digest of the request that the answer's signature covers.

    The silo so notices a request that was changed on the way.
    """
    return f"{PURPOSE} {hashlib.sha256(message.model_dump_json().encode()).hexdigest()}"


def redeem_invitation(message: EnrolmentIn, folder: Path, now: datetime, aggregator: str) -> None:
    """Registers the key of an invited silo, durably, and uses the invitation up.

    The same key again changes nothing, so that a silo without an answer may ask again, after the invitation has
    expired too: it has signed the message. Raises AuthenticationError, in the same words whatever is wrong with the
    proof, and ConflictError if the name has another key or the key another name. aggregator: its own public key,
    in hexadecimal.
    """
    key, path = _parse_key(message), _open_file(message.name, folder)
    said = _proven_bytes(message.name, message.key, aggregator, message.nonce)
    try:
        key.verify(bytes.fromhex(message.signature), said + message.proof.encode())
    except InvalidSignature:
        raise AuthenticationError(REFUSED) from None
    has_key = _has_key(message, folder)
    if has_key and not path.exists():
        return
    if not has_key and not _is_valid_proof(path, said, message.proof, now):
        _forget_expired(path, now)
        raise AuthenticationError(REFUSED)  # before the lock: a caller without a code must not take it
    with lock_folder(path.parent):  # looked at once more: it may have been withdrawn meanwhile
        if not _has_key(message, folder):
            if not _is_valid_proof(path, said, message.proof, now):
                raise AuthenticationError(REFUSED)
            register_key(message.name, key, folder)
        path.unlink(missing_ok=True)


def _has_key(message: EnrolmentIn, folder: Path) -> bool:
    """Tells whether the name has this very key."""
    held = registered_key(message.name, folder)
    return held is not None and raw_hex(held) == message.key


def known_names(folder: Path, now: datetime) -> tuple[str, ...]:
    """Lists all names with a key or an open invitation, sorted."""
    invited = {path.stem for path in (folder / FOLDER).glob("*.json") if _is_open(path, now)}
    return tuple(sorted(registered_names(folder) | invited))


def _parse_key(message: EnrolmentIn) -> PublicKey:
    try:
        return public_key(bytes.fromhex(message.key))
    except (SettingsError, ValueError):
        raise ProtocolError("key: expected an Ed25519 public key in hexadecimal, got another") from None


def _is_valid_proof(path: Path, said: bytes, proof: str, now: datetime) -> bool:
    """Tells whether a proof is of an open invitation's code."""
    kept = _read_open(path) or OpenInvitation(digest="0" * 64, expires=now)
    return hmac.compare_digest(_prove(kept.digest, said), proof) and now < kept.expires


def _forget_expired(path: Path, now: datetime) -> None:
    """Deletes an expired invitation, so that it stays expired if the clock goes back."""
    kept = _read_open(path)
    if kept is None or now < kept.expires:
        return
    with lock_folder(path.parent):
        if (kept := _read_open(path)) is not None and now >= kept.expires:
            path.unlink(missing_ok=True)


def _read_open(path: Path) -> OpenInvitation | None:
    try:
        return OpenInvitation.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _is_open(path: Path, now: datetime) -> bool:
    kept = _read_open(path)
    return kept is not None and now < kept.expires


def _proven_bytes(name: str, key: str, aggregator: str, nonce: str) -> bytes:
    return "\n".join((PURPOSE, name, key, aggregator, nonce, "")).encode()


def _prove(digest: str, said: bytes) -> str:
    return hmac.digest(bytes.fromhex(digest), said, hashlib.sha256).hex()


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _open_file(name: str, folder: Path) -> Path:
    return public_file(name, folder / FOLDER).with_suffix(".json")


def describe_other_federation(expected: FederationOut, observed: FederationOut) -> str | None:
    """Describes the first setting in which two federations differ; None if alike."""
    described = set(FederationOut.model_fields)
    if expected.items_sha256 is None:  # said before the aggregator had the list
        described.remove("items_sha256")
    ours, theirs = (_flat_settings(one.model_dump(mode="json", include=described)) for one in (expected, observed))
    for name in sorted(ours.keys() | theirs.keys(), key=lambda one: (one.count("."), not one.endswith("kind"), one)):
        if ours.get(name) != theirs.get(name):
            return f"{name}: expected {_describe_value(ours, name)}, got {_describe_value(theirs, name)}"
    return None


def _flat_settings(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested settings by dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat_settings(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return flat


def _describe_value(values: dict[str, Any], name: str) -> str:
    return repr(values[name]) if name in values else "the default"
