"""Signatures of a secure round's messages, zero-knowledge proofs about secret scalars, and complaints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from shared.errors import ProtocolError
from shared.protocol.secure import group, keys, shamir
from shared.protocol.secure.group import ORDER, encode_scalar
from shared.protocol.secure.hash_tree import climb_path
from shared.protocol.secure.keys import PROTOCOL, Context
from shared.protocol.secure.messages import (
    CommittedShares,
    Complaint,
    DeliveredShare,
    ExpulsionEvidence,
    Possession,
    PublicKeys,
    Roster,
    SealedShares,
    SignedClientMessage,
)
from shared.protocol.secure.state import SharePair
from shared.protocol.signing.keys import PrivateKey, PublicKey, is_made_by, public_key

M = TypeVar("M", bound=SignedClientMessage)
ShareKind = Literal["key", "seed"]


def sign_message(message: M, key: PrivateKey) -> M:
    """Returns the message with its sender's signature.

    Ed25519 signs the same message the same way again.
    """
    return message.model_copy(update={"signature": key.sign(_signed_bytes(message)).hex()})


def require_signature(message: SignedClientMessage, key: PublicKey) -> None:
    """Raises ProtocolError unless the owner of this key has signed the message."""
    if not is_signed(_signed_bytes(message), message.signature, key):
        raise ProtocolError(
            f"expected {type(message).__name__} that {message.client!r} has signed, got another signature"
        )


def is_signed(content: bytes, signature: str, key: PublicKey) -> bool:
    """Tells whether the owner of a key has signed these bytes."""
    return is_made_by(key, bytes.fromhex(signature), content)


def sign_shares(message: SealedShares, key: PrivateKey) -> SealedShares:
    """Returns the sealed shares with their dealer's signature under all of them."""
    return message.model_copy(update={"signature": key.sign(_root_bytes(message, message.tree.root)).hex()})


def require_signed_shares(message: SealedShares, key: PublicKey) -> None:
    """Raises ProtocolError unless the dealer has signed all of its shares."""
    if not is_signed(_root_bytes(message, message.tree.root), message.signature, key):
        raise ProtocolError(f"expected shares that {message.client!r} has signed, got others")


def require_share_signature(context: Context, dealer: str, holder: str, share: DeliveredShare, key: PublicKey) -> None:
    """Raises ProtocolError unless the dealer has signed this share for this holder.

    With this round's roster.
    """
    leaf = share.hash_for(holder, dealer, share.challenge, context)
    content = context.label("signed shares", dealer, climb_path(leaf, bytes.fromhex(share.path)).hex())
    if not is_signed(content, share.signature, key):
        raise ProtocolError(f"expected a share that {dealer!r} has signed for {holder!r}, got another")


def _root_bytes(message: SealedShares, root: bytes) -> bytes:
    context = Context(message.version, message.run, message.round, message.transcript)
    return context.label("signed shares", message.client, root.hex())


def sign_peers(context: Context, client: str, sharers: Sequence[str], key: PrivateKey) -> str:
    """Signs the list of sharers that a client's vector is masked with."""
    return key.sign(_peers_bytes(context, client, sharers)).hex()


def require_peers(context: Context, client: str, sharers: Sequence[str], signature: str | None, key: PublicKey) -> None:
    """Raises ProtocolError unless a client has masked its vector for this list of sharers."""
    if signature is None or not is_signed(_peers_bytes(context, client, sharers), signature, key):
        raise ProtocolError(f"expected {client!r} to have signed the list of sharers, got another signature or none")


def _peers_bytes(context: Context, client: str, sharers: Sequence[str]) -> bytes:
    listed = hashlib.sha256("\n".join(sharers).encode()).hexdigest()
    return context.label("signed sharers", client, listed)


def identity_key(identity: str) -> PublicKey:
    """Reads a public key from its 32 bytes in hexadecimal."""
    return public_key(bytes.fromhex(identity))


def _signed_bytes(message: SignedClientMessage) -> bytes:
    """Returns the bytes to sign: protocol, kind of message, content without tags.

    So no signature fits another purpose.
    """
    content = message.model_dump_json(exclude={"signature", "tags"})
    return f"{PROTOCOL}\n{type(message).__name__}\n{content}".encode()


def prove_possession(secret: int, label: bytes) -> Possession:
    """Proves knowledge of the secret of its point, bound to `label`."""
    nonce = group.draw_scalar()
    challenge = _challenge(label, group.multiply_base(secret), group.multiply_base(nonce))
    response = (nonce + challenge * secret) % ORDER
    return Possession(challenge=encode_scalar(challenge), response=encode_scalar(response))


def require_possession(point: bytes, proof: Possession, label: bytes) -> None:
    """Raises ProtocolError unless the proof of possession holds."""
    challenge, response = int(proof.challenge, 16), int(proof.response, 16)
    head = group.add(group.multiply_base(response), group.multiply(-challenge, point))
    if _challenge(label, point, head) != challenge:
        raise ProtocolError("expected a proof that the sender knows the secret of its key, got one that does not hold")


def prove_agreement(secret: int, peer: bytes, label: bytes) -> Complaint:
    """Computes the point that two keys agree on, with a proof of it."""
    agreed, nonce = group.multiply(secret, peer), group.draw_scalar()
    heads = (group.multiply_base(nonce), group.multiply(nonce, peer))
    challenge = _challenge(label, group.multiply_base(secret), peer, agreed, *heads)
    response = (nonce + challenge * secret) % ORDER
    return Complaint(point=agreed.hex(), challenge=encode_scalar(challenge), response=encode_scalar(response))


def require_agreement(own: bytes, peer: bytes, proof: Complaint, label: bytes) -> bytes:
    """Returns the point of an agreement; raises ProtocolError unless the proof holds.

    own: the key of the proof's maker.
    """
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


def commit_share(context: Context, dealer: str, holder: str, kind: ShareKind, share: int, blind: int) -> str:
    """Computes the commitment to a share and to what blinds its response."""
    label = context.label(f"committed {kind}", dealer, holder)
    return hashlib.sha256(label + share.to_bytes(group.BYTES) + blind.to_bytes(group.BYTES)).hexdigest()


def require_committed(
    context: Context, dealer: str, holder: str, pair: Mapping[ShareKind, str], given: CommittedShares, challenge: int
) -> None:
    """Raises ProtocolError unless a holder's shares are those that their dealer has committed to."""
    for kind, text in pair.items():
        share, key = int(text, 16), kind == "key"
        response, expected = (
            (given.key_response, given.key_commitment) if key else (given.seed_response, given.seed_commitment)
        )
        blind = (int(response, 16) - challenge * share) % ORDER
        if commit_share(context, dealer, holder, kind, share, blind) != expected:
            raise ProtocolError(f"expected the share that {dealer!r} has committed to, got another")


def challenge_sharing(
    context: Context, dealer: str, heads: Iterable[str], commitments: Iterable[tuple[str, str]]
) -> int:
    """Computes the challenge of a sharing from all that its dealer has committed to.

    commitments: to the shares of each holder, in order.
    """
    points = (*map(bytes.fromhex, heads), *(bytes.fromhex(key + seed) for key, seed in commitments))
    return _challenge(context.label("sharing", dealer, ""), *points)


def require_shared(context: Context, message: SealedShares, published: Mapping[ShareKind, str], threshold: int) -> None:
    """Raises ProtocolError unless the shares of a message are of the published points' secrets.

    That is if every holder's shares are what is committed to, which each holder checks for itself.
    """
    pieces = [message.committed_to(name) for name in message.holders]
    given = {"key": message.key_proof, "seed": message.seed_proof}
    heads, commitments = [one.head for one in given.values()], [(p.key_commitment, p.seed_commitment) for p in pieces]
    challenge = challenge_sharing(context, message.client, heads, commitments)
    if message.challenge != encode_scalar(challenge):
        raise ProtocolError("expected commitments to shares of one secret with their own challenge, got another")
    responses = {"key": [p.key_response for p in pieces], "seed": [p.seed_response for p in pieces]}
    for kind, point in published.items():
        answers = [int(text, 16) for text in (given[kind].response, *responses[kind])]
        shamir.require_consistent(answers, threshold)
        head = group.add(group.multiply_base(answers[0]), group.multiply(-challenge, bytes.fromhex(point)))
        if head.hex() != given[kind].head:
            raise ProtocolError("expected commitments to shares of one secret, the published one, got of another")


def open_share(context: Context, dealer: str, holder: str, key: bytes, given: DeliveredShare) -> SharePair:
    """Opens shares with the key that dealer and holder have derived.

    Raises ProtocolError for other content, or for shares that the dealer has not committed to.
    """
    content = keys.unseal(key, bytes.fromhex(given.sealed), context.label("shares", dealer, holder))
    pair = SharePair.decode(content)
    require_committed(context, dealer, holder, {"key": pair.key, "seed": pair.seed}, given, int(given.challenge, 16))
    return pair


def make_complaint(context: Context, dealer: PublicKeys, holder: str, cipher: int) -> Complaint:
    """Makes a complaint about shares that a dealer has sealed and signed.

    cipher: the holder's secret key for shares.
    """
    label = context.label("complaint", dealer.client, holder)
    return prove_agreement(cipher, bytes.fromhex(dealer.deal), label)


def require_valid_evidence(roster: Roster, evidence: ExpulsionEvidence) -> None:
    """Raises ProtocolError unless the evidence shows shares that differ from their commitments."""
    members, context = roster.keys, roster.context
    dealer, holder = evidence.dealer, evidence.holder
    if dealer not in members or holder not in members or dealer == holder:
        raise ProtocolError("expected a complaint of one client of the roster about another, got another")
    require_share_signature(context, dealer, holder, evidence.share, identity_key(members[dealer].identity))
    own, peer = bytes.fromhex(members[holder].cipher), bytes.fromhex(members[dealer].deal)
    label = context.label("complaint", dealer, holder)
    point = require_agreement(own, peer, evidence.complaint, label)
    key = keys.derive(group.convert_points([point])[0], context.label("seal", dealer, holder))
    try:
        open_share(context, dealer, holder, key, evidence.share)
    except ProtocolError:
        return
    raise ProtocolError(f"expected a complaint about shares that {dealer!r} has not committed to, they are in order")
