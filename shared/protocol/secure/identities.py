"""A message of a secure round and the client's enrolled Ed25519 key -> a signature that anybody can check."""

from __future__ import annotations

from typing import TypeVar

from cryptography.exceptions import InvalidSignature

from shared.errors import ProtocolError
from shared.protocol.secure.keys import PROTOCOL, Context
from shared.protocol.secure.messages import SealedShare, SignedByClient
from shared.protocol.signing.keys import PrivateKey, PublicKey, public_key

M = TypeVar("M", bound=SignedByClient)


def sign_message(message: M, key: PrivateKey) -> M:
    """The same message with its sender's signature. Ed25519 signs the same message the same way again."""
    return message.model_copy(update={"signature": key.sign(_signed_bytes(message)).hex()})


def require_signature(message: SignedByClient, key: PublicKey) -> None:
    """ProtocolError unless the owner of this key has signed this message."""
    try:
        key.verify(bytes.fromhex(message.signature), _signed_bytes(message))
    except InvalidSignature:
        kind = type(message).__name__
        raise ProtocolError(f"expected {kind} that {message.client!r} has signed, got another signature") from None


def sign_share(context: Context, dealer: str, holder: str, share: SealedShare, key: PrivateKey) -> SealedShare:
    """The same share with its dealer's signature."""
    signature = key.sign(_share_bytes(context, dealer, holder, share)).hex()
    return share.model_copy(update={"signature": signature})


def require_share_signature(context: Context, dealer: str, holder: str, share: SealedShare, key: PublicKey) -> None:
    """ProtocolError unless this dealer has signed this very share for this holder, seeing this round's roster."""
    try:
        key.verify(bytes.fromhex(share.signature), _share_bytes(context, dealer, holder, share))
    except InvalidSignature:
        raise ProtocolError(f"expected a share that {dealer!r} has signed for {holder!r}, got another") from None


def identity_key(identity: str) -> PublicKey:
    """The public key whose 32 bytes are written in hexadecimal."""
    return public_key(bytes.fromhex(identity))


def _signed_bytes(message: SignedByClient) -> bytes:
    """The protocol's name and the kind of message before its content, so that no signature fits another purpose."""
    content = message.model_dump_json(exclude={"signature"})
    return f"{PROTOCOL}\n{type(message).__name__}\n{content}".encode()


def _share_bytes(context: Context, dealer: str, holder: str, share: SealedShare) -> bytes:
    content = bytes.fromhex(share.sealed + share.key_commitment + share.seed_commitment)
    return context.label("signed share", dealer, holder) + content
