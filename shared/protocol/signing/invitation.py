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
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, Field, ValidationError, model_validator

from shared.errors import SettingsError
from shared.message import Message
from shared.method.settings import MethodSettings
from shared.protocol.item_list import LONGEST_PACKED, ItemListOut, unpack_item_list
from shared.protocol.schemas import ClientName
from shared.protocol.signing.keys import PrivateKey, raw_hex

CODE_BYTES = 32
LONGEST_INVITATION = LONGEST_PACKED + (2 << 20)  # bytes of its file
LONGEST_ENROLMENT = 1024  # bytes of the message that redeems an invitation
NONCE_BYTES = 16
PURPOSE = "lpsfed enrolment/2"  # prefix of proven and signed bytes, so that neither is valid elsewhere

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


class EnrolledOut(Message):
    """Silo whose public key is registered."""

    name: ClientName
    fingerprint: Hex32 | None = Field(
        description="sha256 of its public key; none for a file of the folder that is no such key, which is refused"
    )


class EnrolmentsOut(Message):
    """Page of the registered silos, by name."""

    entries: tuple[EnrolledOut, ...] = Field(description="silos of this page, sorted by name")
    total: int = Field(ge=0, description="number of registered silos")


class RemovedOut(Message):
    """Silo whose key and invitation have been removed."""

    name: ClientName


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
        fields = sorted({str(entry["loc"][0]) for entry in error.errors() if entry["loc"]})
        found = f"wrong fields: {', '.join(fields)}" if fields else "another file"
        words = f"expected an invitation of `lpsfed invite`, got {found}"
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
    said = proven_bytes(invitation.name, own, invitation.aggregator, nonce)
    proof = prove(code_digest(invitation.code), said)
    signature = key.sign(said + proof.encode()).hex()
    return EnrolmentIn(name=invitation.name, key=own, nonce=nonce, proof=proof, signature=signature)


def enrolment_digest(message: EnrolmentIn) -> str:
    """Returns the digest of the request that the answer's signature covers.

    The silo so notices a request that was changed on the way.
    """
    return f"{PURPOSE} {hashlib.sha256(message.model_dump_json().encode()).hexdigest()}"


def proven_bytes(name: str, key: str, aggregator: str, nonce: str) -> bytes:
    """Returns the content that an enrolling silo proves and signs."""
    return "\n".join((PURPOSE, name, key, aggregator, nonce, "")).encode()


def prove(digest: str, said: bytes) -> str:
    """Computes the proof of what is said, for a code of this digest."""
    return hmac.digest(bytes.fromhex(digest), said, hashlib.sha256).hex()


def code_digest(code: str) -> str:
    """Computes the sha256 of an invitation's code."""
    return hashlib.sha256(code.encode()).hexdigest()


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
