"""A client's two secrets -> a sealed and signed piece for each holder; others' pieces -> opened, or complained of."""

from __future__ import annotations

from typing import NamedTuple

from shared.errors import PrivacyError, ProtocolError
from shared.protocol.secure import complaints, group, keys, shamir
from shared.protocol.secure.group import encode_scalar
from shared.protocol.secure.identities import identity_key, require_share_signature, sign_share
from shared.protocol.secure.keys import Context
from shared.protocol.secure.messages import Complaint, Delivery, PublicKeys, Roster, SealedShare
from shared.protocol.secure.state import BegunRound, Secrets, SharePair, Sharing
from shared.protocol.signing.keys import PrivateKey


class Piece(NamedTuple):
    """One holder's part of a client's two secrets: a share of the mask key and of the seed, and their commitments."""

    pair: SharePair
    commitments: tuple[str, str]


def split_secrets(secrets: Secrets, roster: Roster) -> dict[str, Piece]:
    """A piece for each client of the roster."""
    count, threshold = len(roster.members), roster.terms.threshold
    shares = [shamir.split(int(secret, 16), count, threshold) for secret in (secrets.mask, secrets.seed)]
    pairs = (SharePair(key=encode_scalar(key), seed=encode_scalar(seed)) for key, seed in zip(*shares, strict=True))
    points = zip(*(shamir.commit(one) for one in shares), strict=True)
    pieces = (Piece(pair, (key.hex(), seed.hex())) for pair, (key, seed) in zip(pairs, points, strict=True))
    return dict(zip(roster.names, pieces, strict=True))


def seal_piece(
    state: BegunRound, context: Context, peer: PublicKeys, piece: Piece, identity: PrivateKey
) -> SealedShare:
    """A piece on its way to its holder, sealed for it and signed."""
    names, deal = (state.client, peer.client), int(state.secrets.deal, 16)
    key = keys.agree(deal, bytes.fromhex(peer.cipher), context.label("seal", *names))
    sealed = keys.seal(key, piece.pair.encode(), context.label("shares", *names)).hex()
    share = SealedShare(sealed=sealed, key_commitment=piece.commitments[0], seed_commitment=piece.commitments[1])
    return sign_share(context, *names, share, identity)


def open_delivery(state: Sharing, delivery: Delivery) -> tuple[dict[str, SharePair], dict[str, Complaint]]:
    """The shares that are in order, by dealer, one's own among them; and a complaint of each dealer of others."""
    members, context, cipher = state.roster.keys, state.roster.context, int(state.secrets.cipher, 16)
    shares, refused = {state.client: state.own}, dict[str, Complaint]()
    for dealer, given in delivery.shares.items():
        _require_untouched(context, members[dealer], state.client, given)
        point = group.multiply(cipher, bytes.fromhex(members[dealer].deal))
        try:
            shares[dealer] = complaints.open_share(context, dealer, state.client, point, given)
        except ProtocolError:
            refused[dealer] = complaints.complain(context, members[dealer], state.client, cipher)
    return shares, refused


def _require_untouched(context: Context, dealer: PublicKeys, own: str, given: SealedShare) -> None:
    """PrivacyError for shares that their dealer has not signed so: a complaint about them would tell the aggregator,
    which has the true ones, how to open these."""
    try:
        require_share_signature(context, dealer.client, own, given, identity_key(dealer.identity))
    except ProtocolError as error:
        raise PrivacyError(str(error)) from None
