"""An operator's invitation -> the key of the silo that was invited, in the folder of registered keys.

An invitation is a file for one silo: where the aggregator is, which key its answers are signed with, and a code that
registers one key under one name, once, until it expires. The aggregator's folder holds the code's digest alone.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, ValidationError

from shared.errors import AuthenticationError, ConflictError, NotFoundError, ProtocolError, SettingsError
from shared.message import Message
from shared.new_files import PRIVATE, write_new
from shared.protocol.schemas import ClientName
from shared.protocol.signing.enrolment import public_file, register_key, registered_key, remove, require_name
from shared.protocol.signing.keys import PublicKey, public_key, raw_hex

FOLDER = "invited"  # in the folder of registered keys
CODE_BYTES = 32
LONGEST_ENROLMENT = 1024  # bytes of the message that redeems an invitation
REFUSED = "expected the code of an open invitation for this name: ask the operator for another one"

Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$", examples=["d7" * 32])]
Code = Annotated[
    str, Field(pattern="^[A-Za-z0-9_-]{43}$", repr=False, description="of the invitation", examples=["c" * 43])
]


class Invitation(Message):
    """What the operator hands to one silo. `aggregator`: its public key; `authority`: PEM of who signs certificates."""

    format: Literal["lpsfed-invitation/1"] = "lpsfed-invitation/1"
    name: ClientName
    url: str = Field(pattern=r"^https?://[^/?#]+$")
    code: Code
    expires: AwareDatetime
    aggregator: Hex32
    authority: str | None = Field(None, max_length=100_000)


class EnrolmentIn(Message):
    """A silo redeems its invitation."""

    name: ClientName
    code: Code
    key: Hex32 = Field(description="the silo's own public key, of Ed25519, in hexadecimal")


class InvitationIn(Message):
    """The operator wants to invite a silo."""

    name: ClientName
    days: float = Field(7.0, gt=0, le=365, allow_inf_nan=False, description="until the invitation expires")


class InvitationOut(Message):
    """What the aggregator adds to an invitation. Its code is told this once."""

    code: Code
    expires: AwareDatetime = Field(description="when the code counts no more")
    aggregator: Hex32 = Field(description="the public key that the aggregator's answers are signed with")


class OpenInvitation(Message):
    """What the aggregator keeps of an invitation. `digest`: sha256 of the code."""

    digest: Hex32
    expires: AwareDatetime


def open_invitation(name: str, folder: Path, days: float) -> tuple[str, datetime]:
    """The code of a new invitation, in the place of one for the same name, and when it expires.

    ConflictError for a name that has a key already, SettingsError for what is no client's name.
    """
    require_without_key(name, folder)
    code, expires = secrets.token_urlsafe(CODE_BYTES), datetime.now(UTC) + timedelta(days=days)
    path = _open_file(name, folder)
    path.unlink(missing_ok=True)
    kept = OpenInvitation(digest=_digest(code), expires=expires)
    if not write_new(path, kept.model_dump_json().encode(), PRIVATE):
        raise ConflictError(f"{path}: expected one invitation at a time, another one was made meanwhile")
    return code, expires


def require_without_key(name: str, folder: Path) -> None:
    """ConflictError for a name that has a key already, SettingsError for what is no client's name."""
    if public_file(require_name(name), folder).exists():
        raise ConflictError(f"expected a name without a key, {name!r} has one: remove it first")


def remove_silo(name: str, folder: Path) -> None:
    """From now on the silo of this name is nobody: neither its key counts nor an invitation that is still open.

    NotFoundError where it had neither.
    """
    path = _open_file(require_name(name), folder)
    if invited := path.exists():
        path.unlink(missing_ok=True)  # before the key: whoever holds the code must not follow it
    try:
        remove(name, folder)
    except NotFoundError:
        if not invited:
            raise


def read_invitation(path: Path) -> Invitation:
    """SettingsError for a file that is none. The code is not repeated."""
    try:
        return Invitation.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"{path}: expected a readable invitation ({error.strerror})") from None
    except ValidationError as error:
        fields = sorted({str(entry["loc"][0]) if entry["loc"] else "format" for entry in error.errors()})
        raise SettingsError(f"{path}: expected an invitation of `lpsfed invite`, not understood: {fields}") from None


def redeem(message: EnrolmentIn, folder: Path, now: datetime) -> None:
    """Register the key under the name, durable when this returns; the invitation is used up then.

    The very same key again changes nothing, so that a silo without an answer may ask again. AuthenticationError, in the
    same words whatever is wrong with the code, and ConflictError where the name or the key has another partner.
    """
    key, path = _key_of(message), _open_file(message.name, folder)
    held = registered_key(message.name, folder)
    if held is not None and raw_hex(held) == message.key:
        path.unlink(missing_ok=True)
        return
    if not _holds(path, message.code, now):
        raise AuthenticationError(REFUSED)
    register_key(message.name, key, folder)
    path.unlink(missing_ok=True)


def _key_of(message: EnrolmentIn) -> PublicKey:
    try:
        return public_key(bytes.fromhex(message.key))
    except (SettingsError, ValueError):
        raise ProtocolError("key: expected an Ed25519 public key in hexadecimal, got another") from None


def _holds(path: Path, code: str, now: datetime) -> bool:
    """Is it the code of an invitation that is open?"""
    try:
        kept = OpenInvitation.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        kept = OpenInvitation(digest="0" * 64, expires=now)
    return hmac.compare_digest(kept.digest, _digest(code)) and now < kept.expires


def _digest(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()


def _open_file(name: str, folder: Path) -> Path:
    return public_file(name, folder / FOLDER).with_suffix(".json")
