"""Proofs about secret scalars that tell nothing else: that somebody knows one, and that two points have the same one.

Schnorr's proof of knowledge (CRYPTO 1989), and that of Chaum and Pedersen (CRYPTO 1992) of equal discrete logarithms,
both made non-interactive by a hash of everything that they are about (Fiat and Shamir).
"""

from __future__ import annotations

import hashlib

from shared.errors import ProtocolError
from shared.protocol.secure import group
from shared.protocol.secure.group import ORDER, encode_scalar
from shared.protocol.secure.messages import Complaint, Possession


def prove_possession(secret: int, label: bytes) -> Possession:
    """That whoever says `label` knows the secret of its point."""
    nonce = group.draw_scalar()
    challenge = _challenge(label, group.multiply_base(secret), group.multiply_base(nonce))
    response = (nonce + challenge * secret) % ORDER
    return Possession(challenge=encode_scalar(challenge), response=encode_scalar(response))


def require_possession(point: bytes, proof: Possession, label: bytes) -> None:
    """ProtocolError unless the proof holds."""
    challenge, response = int(proof.challenge, 16), int(proof.response, 16)
    head = group.add(group.multiply_base(response), group.multiply(-challenge, point))
    if _challenge(label, point, head) != challenge:
        raise ProtocolError("expected a proof that the sender knows the secret of its key, got one that does not hold")


def prove_agreement(secret: int, peer: bytes, label: bytes) -> Complaint:
    """The point that the secret agrees on with the peer's key, and a proof that it is that point."""
    agreed, nonce = group.multiply(secret, peer), group.draw_scalar()
    heads = (group.multiply_base(nonce), group.multiply(nonce, peer))
    challenge = _challenge(label, group.multiply_base(secret), peer, agreed, *heads)
    response = (nonce + challenge * secret) % ORDER
    return Complaint(point=agreed.hex(), challenge=encode_scalar(challenge), response=encode_scalar(response))


def require_agreement(own: bytes, peer: bytes, proof: Complaint, label: bytes) -> bytes:
    """The point that the owner of the key `own` agrees on with the peer's. ProtocolError unless the proof holds."""
    agreed = bytes.fromhex(proof.point)
    challenge, response = int(proof.challenge, 16), int(proof.response, 16)
    heads = (
        group.add(group.multiply_base(response), group.multiply(-challenge, own)),
        group.add(group.multiply(response, peer), group.multiply(-challenge, agreed)),
    )
    if _challenge(label, own, peer, agreed, *heads) != challenge:
        raise ProtocolError("expected a complaint that its sender can prove, got one whose proof does not hold")
    return agreed


def _challenge(label: bytes, *points: bytes) -> int:
    return int.from_bytes(hashlib.sha512(label + b"".join(points)).digest()) % ORDER
