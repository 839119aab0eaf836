"""A holder that cannot open what a dealer has sealed for it -> a complaint with a proof; the complaint -> a judgement.

A complaint tells the point that opens one sealed message, with a proof that it is that point. So a holder cannot open
something else and complain of a message that was in order. And it tells of nobody who is honest: a holder complains
only of what its dealer has signed, never of what somebody has changed on the way, and every dealer has proven that it
knows the secret of its key, so that the point opens nobody else's messages.
"""

from __future__ import annotations

from shared.errors import ProtocolError
from shared.protocol.secure import group, keys, proofs
from shared.protocol.secure.identities import identity_key, require_share_signature
from shared.protocol.secure.keys import Context
from shared.protocol.secure.messages import Complaint, ExpulsionEvidence, PublicKeys, Roster, SealedShare
from shared.protocol.secure.state import SharePair


def open_share(context: Context, dealer: str, holder: str, point: bytes, given: SealedShare) -> SharePair:
    """The shares sealed by the point that both keys agree on. ProtocolError for none, or others than committed to."""
    key = keys.derive(point, context.label("seal", dealer, holder))
    content = keys.unseal(key, bytes.fromhex(given.sealed), context.label("shares", dealer, holder))
    pair = SharePair.decode(content)
    committed = (given.key_commitment, given.seed_commitment)
    if tuple(group.multiply_base(int(one, 16)).hex() for one in (pair.key, pair.seed)) != committed:
        raise ProtocolError("expected the shares that their dealer has committed to, got others")
    return pair


def complain(context: Context, dealer: PublicKeys, holder: str, cipher: int) -> Complaint:
    """A complaint about what `dealer` has sealed and signed. `cipher`: the holder's secret key for shares."""
    label = context.label("complaint", dealer.client, holder)
    return proofs.prove_agreement(cipher, bytes.fromhex(dealer.deal), label)


def require_proven(roster: Roster, evidence: ExpulsionEvidence) -> None:
    """ProtocolError unless the evidence shows that its dealer has signed other shares than it committed to."""
    members, context = roster.keys, roster.context
    dealer, holder = evidence.dealer, evidence.holder
    if dealer not in members or holder not in members or dealer == holder:
        raise ProtocolError("expected a complaint of one client of the roster about another, got another")
    require_share_signature(context, dealer, holder, evidence.share, identity_key(members[dealer].identity))
    own, peer = bytes.fromhex(members[holder].cipher), bytes.fromhex(members[dealer].deal)
    label = context.label("complaint", dealer, holder)
    point = proofs.require_agreement(own, peer, evidence.complaint, label)
    try:
        open_share(context, dealer, holder, point, evidence.share)
    except ProtocolError:
        return
    raise ProtocolError(f"expected a complaint about shares that {dealer!r} has not committed to, they are in order")
