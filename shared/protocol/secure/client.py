"""Client's side of a secure round: keys, shares, checks, mask, consent, recovery."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shared.errors import ConflictError, PrivacyError, ProtocolError, RoundClosedError
from shared.method.parameters import Parameters
from shared.protocol.secure import group, keys, proofs, shamir, vectors
from shared.protocol.secure.common import describe_terms, describe_unlike_lists, find_differences
from shared.protocol.secure.group import encode_scalar
from shared.protocol.secure.keys import Context
from shared.protocol.secure.messages import (
    CommonTerms,
    Complaint,
    Consent,
    Consents,
    Delivery,
    MaskedHeader,
    PublicKeys,
    Roster,
    RoundTerms,
    SealedShare,
    SealedShares,
    ShareCheck,
    Sharers,
    UnmaskAnswer,
    UnmaskRequest,
    least_threshold,
    possession_label,
    require_round,
    visible_scalars,
)
from shared.protocol.secure.proofs import (
    identity_key,
    require_possession,
    require_share_signature,
    require_signature,
    sign_message,
    sign_share,
)
from shared.protocol.secure.state import BegunState, CheckedState, ReadyState, Secrets, SharePair, SharingState
from shared.protocol.secure.vectors import MaskedUpdate, MaskStream
from shared.protocol.signing.keys import PrivateKey, PublicKey, raw_hex


class Piece(NamedTuple):
    """Shares of a client's mask key and seed for one holder, with commitments to them."""

    pair: SharePair
    commitments: tuple[str, str]


def split_secrets(secrets: Secrets, roster: Roster) -> dict[str, Piece]:
    """Splits both secrets into a piece for each client of the roster."""
    count, threshold = len(roster.members), roster.terms.threshold
    shares = [shamir.split_secret(int(secret, 16), count, threshold) for secret in (secrets.mask, secrets.seed)]
    pairs = (SharePair(key=encode_scalar(key), seed=encode_scalar(seed)) for key, seed in zip(*shares, strict=True))
    points = zip(*(shamir.commit_shares(one) for one in shares), strict=True)
    pieces = (Piece(pair, (key.hex(), seed.hex())) for pair, (key, seed) in zip(pairs, points, strict=True))
    return dict(zip(roster.names, pieces, strict=True))


def seal_piece(
    state: BegunState, context: Context, peer: PublicKeys, piece: Piece, identity: PrivateKey
) -> SealedShare:
    """Encrypts and signs a piece for its holder."""
    names, deal = (state.client, peer.client), int(state.secrets.deal, 16)
    key = keys.agree(deal, bytes.fromhex(peer.cipher), context.label("seal", *names))
    sealed = keys.seal(key, piece.pair.encode(), context.label("shares", *names)).hex()
    share = SealedShare(sealed=sealed, key_commitment=piece.commitments[0], seed_commitment=piece.commitments[1])
    return sign_share(context, *names, share, identity)


def open_delivery(state: SharingState, delivery: Delivery) -> tuple[dict[str, SharePair], dict[str, Complaint]]:
    """Opens the delivered shares; returns valid ones and complaints, by dealer.

    This client's own share is among the valid ones.
    """
    members, context, cipher = state.roster.keys, state.roster.context, int(state.secrets.cipher, 16)
    shares, refused = {state.client: state.own}, dict[str, Complaint]()
    for dealer, given in delivery.shares.items():
        _require_dealer_signature(context, members[dealer], state.client, given)
        point = group.multiply(cipher, bytes.fromhex(members[dealer].deal))
        try:
            shares[dealer] = proofs.open_share(context, dealer, state.client, point, given)
        except ProtocolError:
            refused[dealer] = proofs.make_complaint(context, members[dealer], state.client, cipher)
    return shares, refused


def _require_dealer_signature(context: Context, dealer: PublicKeys, own: str, given: SealedShare) -> None:
    """Raises PrivacyError for shares that their dealer has not signed.

    A complaint about them would tell the aggregator, which has the true ones, how to open these.
    """
    try:
        require_share_signature(context, dealer.client, own, given, identity_key(dealer.identity))
    except ProtocolError as error:
        raise PrivacyError(str(error)) from None


Members = Mapping[str, PublicKey]
"""The clients that a silo knows, and the key of each."""


def require_protective_roster(state: BegunState, roster: Roster) -> None:
    """Raises PrivacyError for a roster that does not protect this client.

    It has other terms than the round began with, lacks this client's own keys, or has too few clients or too low a
    threshold.
    """
    _require_same(state.terms.common, roster.terms.common, "the roster")
    if roster.terms != state.terms:
        raise PrivacyError(describe_terms(state.terms, roster.terms))
    if roster.keys.get(state.client) != state.message:
        raise PrivacyError("expected this client's own public keys in the roster, got others or none")
    count, threshold = len(roster.members), roster.terms.threshold
    if count < threshold:
        raise PrivacyError(f"expected at least {threshold} clients in the roster, got {count}")
    if threshold < least_threshold(count):
        raise PrivacyError(f"expected a threshold of at least {least_threshold(count)} of {count}, got {threshold}")


def require_members(roster: Roster, members: Members) -> None:
    """Raises PrivacyError unless every key belongs to a known member with the same terms.

    Each is signed by a known client that proves its secret, has the same terms, and sums over the same list of items.
    """
    for one in roster.members:
        if one.client not in members:
            raise PrivacyError(f"expected clients that this silo knows as members, got {one.client!r}")
        if one.identity != raw_hex(members[one.client]):
            raise PrivacyError(f"expected the key that this silo knows of {one.client!r}, got another")
        try:
            require_signature(one, members[one.client])
            require_possession(bytes.fromhex(one.deal), one.possession, possession_label(roster.terms, one.client))
        except ProtocolError as error:
            raise PrivacyError(str(error)) from None
        _require_same(roster.terms.common, one.common, f"{one.client!r}")
    if (difference := describe_unlike_lists(roster.members)) is not None:
        raise PrivacyError(difference)


def _require_same(own: CommonTerms, other: CommonTerms, who: str) -> None:
    if differing := find_differences(own, other):
        raise PrivacyError(f"expected {who} to have the same terms as this client, got another {', '.join(differing)}")


def _roster_fields(context: Context, client: str) -> dict[str, Any]:
    """Returns the fields that bind a message to a round's roster."""
    return {"run": context.run, "round": context.round, "client": client, "transcript": context.transcript}


def begin_secure_round(
    terms: RoundTerms,
    client: str,
    identity: PrivateKey,
    *,
    noised: bool = False,
    changing_members: bool = False,
    stamp: str | None = None,
    catalogue: str | None = None,
) -> BegunState:
    """Begins a round with new keys; the state holds the message to send."""
    scalars = {name: group.draw_scalar() for name in Secrets.model_fields}
    points = {name: group.multiply_base(scalar).hex() for name, scalar in scalars.items()}
    message = PublicKeys(
        run=terms.run,
        round=terms.round,
        client=client,
        identity=raw_hex(identity.public_key()),
        deal=points["deal"],
        possession=proofs.prove_possession(scalars["deal"], possession_label(terms, client)),
        cipher=points["cipher"],
        mask=points["mask"],
        commitment=points["seed"],
        common=terms.common,
        noised=noised,
        changing_members=changing_members,
        stamp=stamp,
        catalogue=catalogue,
    )
    secrets = Secrets(**{name: encode_scalar(scalar) for name, scalar in scalars.items()})
    return BegunState(client=client, terms=terms, secrets=secrets, message=sign_message(message, identity))


def share_secrets(state: BegunState, roster: Roster, members: Members, identity: PrivateKey) -> SharingState:
    """Shares both secrets among the roster's clients, each share sealed for its holder.

    Raises PrivacyError for a roster that would not protect this client: too few clients, too low a threshold, not its
    own keys, keys that their owner has not signed, or a client with other terms.
    """
    require_protective_roster(state, roster)
    require_members(roster, members)
    split, context = split_secrets(state.secrets, roster), roster.context
    sealed = {
        peer.client: seal_piece(state, context, peer, split[peer.client], identity)
        for peer in roster.members
        if peer.client != state.client
    }
    own = split[state.client]
    message = SealedShares(
        **_roster_fields(context, state.client),
        shares=sealed,
        key_commitment=own.commitments[0],
        seed_commitment=own.commitments[1],
    )
    return SharingState(client=state.client, secrets=state.secrets, roster=roster, own=own.pair, message=message)


def check_shares(state: SharingState, delivery: Delivery, identity: PrivateKey) -> CheckedState:
    """Opens the shares of all sharers, and complains with proof about invalid ones.

    They are opened now and not when they are needed, so that nothing is masked with a client whose secrets could not
    be restored. Raises PrivacyError for sharers that are too few or not of the roster, and for shares that their
    dealer has not signed.
    """
    require_round(state.roster.terms, delivery)
    _require_sharers(state.roster, state.client, {*delivery.shares, state.client})
    shares, refused = open_delivery(state, delivery)
    message = ShareCheck(**_roster_fields(state.roster.context, state.client), complaints=refused)
    return CheckedState(
        client=state.client,
        secrets=state.secrets,
        roster=state.roster,
        shares=shares,
        message=sign_message(message, identity),
    )


def _require_sharers(roster: Roster, own: str, sharers: set[str]) -> None:
    if not sharers <= set(roster.names) or own not in sharers:
        raise PrivacyError("expected sharers of the roster and this client among them, got others")
    if len(sharers) < roster.terms.threshold:
        raise PrivacyError(f"expected at least {roster.terms.threshold} sharers, got {len(sharers)}")


def mask_update(
    state: CheckedState | ReadyState, sharers: Sharers, content: Parameters
) -> tuple[ReadyState, MaskedUpdate]:
    """Masks an update with the client's own mask and those shared with other sharers.

    The same input gives the same result. Raises ConflictError for another update or other sharers in the same round:
    the difference would be readable.
    """
    require_round(state.roster.terms, sharers)
    _require_sharers(state.roster, state.client, set(sharers.sharers))
    if unheld := set(sharers.sharers) - set(state.shares):
        raise PrivacyError(f"expected sharers whose shares this client holds, got {len(unheld)} others")
    terms = state.roster.terms
    encoded = vectors.encode_vector(terms.declaration, content)
    ready = _fix_sharers(state, sharers, vectors.digest_vector(encoded))
    chosen = list_mask_streams(ready)
    masked = {
        name: vectors.add_masks(value, chosen, piece=piece) for piece, (name, value) in enumerate(encoded.items())
    }
    visible = visible_scalars(terms.declaration)
    scalars = {name: value for name, value in content.scalars.items() if name in visible}
    sent = vectors.digest_vector(masked)
    header = MaskedHeader(run=terms.run, round=terms.round, client=state.client, digest=sent, scalars=scalars)
    return ready, MaskedUpdate(header, masked)


def _fix_sharers(state: CheckedState | ReadyState, sharers: Sharers, digest: str) -> ReadyState:
    """Returns the state with the masked update and its sharers fixed."""
    if isinstance(state, ReadyState):
        if (digest, sharers.sharers) != (state.sent, state.sharers):
            words = "expected the update and the sharers that were masked before, got others"
            raise ConflictError(f"round {state.roster.terms.round}: {words}")
        return state
    return ReadyState(
        client=state.client,
        secrets=state.secrets,
        roster=state.roster,
        shares={name: state.shares[name] for name in sharers.sharers},
        sent=digest,
        proven=_require_proven(state.roster, sharers),
    )


def _require_proven(roster: Roster, sharers: Sharers) -> tuple[str, ...]:
    """Lists expelled clients; raises ProtocolError for evidence that does not hold."""
    for one in sharers.evidence:
        proofs.require_valid_evidence(roster, one)
    return tuple(sorted({one.dealer for one in sharers.evidence}))


def list_mask_streams(state: ReadyState) -> tuple[MaskStream, ...]:
    """Returns the mask streams of this client: its own, and one for each other sharer."""
    context, members, own = state.roster.context, state.roster.keys, state.client
    private, seed = int(state.secrets.mask, 16), int(state.secrets.seed, 16)
    pairwise = (
        MaskStream(
            keys.agree_on_mask(private, bytes.fromhex(members[name].mask), context, own, name),
            vectors.mask_sign(own, name),
        )
        for name in state.shares
        if name != own
    )
    return (MaskStream(keys.derive_self_mask(seed, context, own), 1), *pairwise)


def sign_consent(state: ReadyState, request: UnmaskRequest, identity: PrivateKey) -> tuple[ReadyState, Consent]:
    """Signs the lists of survivors and drop-outs, one pair of lists a round.

    Raises PrivacyError for lists that do not divide the sharers in two with enough survivors, or that differ from
    those signed before: shares of both kinds together would remove all masks of one client.
    """
    require_round(state.roster.terms, request)
    _require_valid_lists(state, request)
    lists = {"survivors": request.survivors, "dropped": request.dropped}
    message = Consent(**_roster_fields(state.roster.context, state.client), **lists)
    if state.consent is not None and state.consent.model_dump(include=set(lists)) != lists:
        raise PrivacyError("expected the lists that this client has signed, got others for the same round")
    signed = sign_message(message, identity)
    return state.model_copy(update={"consent": signed}), signed


def _require_valid_lists(state: ReadyState, request: UnmaskRequest) -> None:
    survivors, dropped, threshold = set(request.survivors), set(request.dropped), state.roster.terms.threshold
    if both := len(survivors & dropped):
        raise PrivacyError(f"expected one kind of share for each client, got a request for both kinds of {both}")
    if survivors | dropped != set(state.shares):
        raise PrivacyError(f"expected a request about all {len(state.shares)} sharers and no other client, got another")
    if len(survivors) < threshold:
        raise PrivacyError(f"expected at least {threshold} survivors, got {len(survivors)}")
    if state.client not in survivors:
        raise RoundClosedError("expected this client's masked vector to be in the sum, it is not")


def answer_unmask_request(state: ReadyState, consents: Consents) -> UnmaskAnswer:
    """Returns the shares that unmask the sum, once enough survivors have signed.

    Shares of the survivors' seeds and of the drop-outs' mask keys. Raises PrivacyError for too few signatures, or for
    one that is not a survivor's under the same lists.
    """
    require_round(state.roster.terms, consents)
    if state.consent is None:
        raise PrivacyError("expected a request after this client's consent, got one before it")
    _require_agreed(state.roster, state.consent, consents)
    return UnmaskAnswer(
        run=consents.run,
        round=consents.round,
        client=state.client,
        seeds={name: state.shares[name].seed for name in state.consent.survivors},
        keys={name: state.shares[name].key for name in state.consent.dropped},
    )


def _require_agreed(roster: Roster, own: Consent, consents: Consents) -> None:
    if not set(consents.signatures) <= set(own.survivors):
        raise PrivacyError("expected signatures of survivors alone, got others")
    if len(consents.signatures) < roster.terms.threshold:
        words = f"expected at least {roster.terms.threshold} survivors to have signed the same lists"
        raise PrivacyError(f"{words}, got {len(consents.signatures)}")
    members = roster.keys
    for name, signature in consents.signatures.items():
        theirs = own.model_copy(update={"client": name, "signature": signature})
        try:
            require_signature(theirs, identity_key(members[name].identity))
        except ProtocolError as error:
            raise PrivacyError(f"{error}: it has seen other lists, or none") from None
