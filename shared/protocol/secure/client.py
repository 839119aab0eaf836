"""Client's side of a secure round: keys, shares, checks, mask, consent, recovery."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shared.errors import ConflictError, PrivacyError, ProtocolError, RoundClosedError
from shared.method.parameters import Parameters
from shared.protocol.secure import graph, group, keys, proofs, shamir, vectors
from shared.protocol.secure.common import describe_terms, describe_unlike_lists, find_differences
from shared.protocol.secure.group import encode_scalar
from shared.protocol.secure.keys import Context
from shared.protocol.secure.messages import (
    CommittedShares,
    CommonTerms,
    Complaint,
    Consent,
    Consents,
    DeliveredShare,
    Delivery,
    MaskedHeader,
    PublicKeys,
    Roster,
    RoundTerms,
    SealedShare,
    SealedShares,
    ShareCheck,
    Sharers,
    SharingProof,
    UnmaskAnswer,
    UnmaskRequest,
    least_threshold,
    possession_label,
    require_round,
    visible_scalars,
)
from shared.protocol.secure.proofs import (
    ShareKind,
    identity_key,
    require_peers,
    require_possession,
    require_share_signature,
    require_signature,
    sign_message,
    sign_peers,
    sign_shares,
)
from shared.protocol.secure.state import BegunState, CheckedState, ReadyState, Secrets, SharePair, SharingState, State
from shared.protocol.secure.tags import PairKeys
from shared.protocol.secure.vectors import MaskedUpdate, MaskStream
from shared.protocol.signing.keys import PrivateKey, PublicKey, raw_hex


class Piece(NamedTuple):
    """Shares of a client's mask key and seed for one holder, with commitments to them."""

    pair: SharePair
    committed: CommittedShares


class Sharing(NamedTuple):
    """Pieces by holder, with the proofs that they are of the published points' secrets."""

    pieces: dict[str, Piece]
    challenge: str
    key_proof: SharingProof
    seed_proof: SharingProof


def split_secrets(context: Context, own: str, secrets: Secrets, holders: Sequence[str], threshold: int) -> Sharing:
    """Splits both secrets into a piece for each holder."""
    kinds: dict[ShareKind, int] = {"key": int(secrets.mask, 16), "seed": int(secrets.seed, 16)}
    nonces, count = {kind: group.draw_scalar() for kind in kinds}, len(holders)
    shares = {kind: shamir.split_secret(secret, count, threshold) for kind, secret in kinds.items()}
    blinds = {kind: shamir.split_secret(nonce, count, threshold) for kind, nonce in nonces.items()}
    made = {
        kind: [
            proofs.commit_share(context, own, holder, kind, share, blind)
            for holder, share, blind in zip(holders, shares[kind], blinds[kind], strict=True)
        ]
        for kind in kinds
    }
    heads = {kind: group.multiply_base(nonce).hex() for kind, nonce in nonces.items()}
    challenge = proofs.challenge_sharing(context, own, heads.values(), zip(made["key"], made["seed"], strict=True))

    def respond(blind: int, share: int) -> str:
        return encode_scalar((blind + challenge * share) % group.ORDER)

    pieces = {
        holder: Piece(
            SharePair(key=encode_scalar(shares["key"][place]), seed=encode_scalar(shares["seed"][place])),
            CommittedShares(
                key_commitment=made["key"][place],
                seed_commitment=made["seed"][place],
                key_response=respond(blinds["key"][place], shares["key"][place]),
                seed_response=respond(blinds["seed"][place], shares["seed"][place]),
            ),
        )
        for place, holder in enumerate(holders)
    }
    shown = (SharingProof(head=heads[kind], response=respond(nonces[kind], kinds[kind])) for kind in kinds)
    return Sharing(pieces, encode_scalar(challenge), *shown)


def seal_pieces(state: BegunState, roster: Roster, sharing: Sharing, others: Collection[str]) -> dict[str, SealedShare]:
    """Encrypts a piece for each of the other holders."""
    context, members, sealed, own = roster.context, roster.keys, dict[str, SealedShare](), state.client
    ends = {name: (bytes.fromhex(members[name].cipher), context.label("seal", own, name)) for name in others}
    for name, key in keys.agree(int(state.secrets.deal, 16), ends).items():
        piece = sharing.pieces[name]
        content = keys.seal(key, piece.pair.encode(), context.label("shares", own, name)).hex()
        sealed[name] = SealedShare(**piece.committed.__dict__, sealed=content)
    return sealed


def open_delivery(state: SharingState, delivery: Delivery) -> tuple[dict[str, SharePair], dict[str, Complaint]]:
    """Opens the delivered shares; returns valid ones and complaints, by dealer.

    This client's own share is among the valid ones.
    """
    members, context, cipher = state.roster.keys, state.roster.context, int(state.secrets.cipher, 16)
    shares, refused = {state.client: state.own}, dict[str, Complaint]()
    ends = {
        dealer: (bytes.fromhex(members[dealer].deal), context.label("seal", dealer, state.client))
        for dealer in delivery.shares
    }
    sealing = keys.agree(cipher, ends)
    for dealer, given in delivery.shares.items():
        try:
            shares[dealer] = proofs.open_share(context, dealer, state.client, sealing[dealer], given)
        except ProtocolError:
            _require_complainable(state.roster, context, members[dealer], state.client, given)
            refused[dealer] = proofs.make_complaint(context, members[dealer], state.client, cipher)
    return shares, refused


def _require_complainable(
    roster: Roster, context: Context, dealer: PublicKeys, own: str, given: DeliveredShare
) -> None:
    """Raises PrivacyError for shares about which a complaint would tell how to open others.

    Shares that open, and are the committed ones, need no signature: only their dealer can have sealed them.
    """
    require_signed_keys(roster, [dealer.client])
    _require_dealer_signature(context, dealer, own, given)
    try:
        require_possession(bytes.fromhex(dealer.deal), dealer.possession, possession_label(roster.terms, dealer.client))
    except ProtocolError as error:
        raise PrivacyError(str(error)) from None


def _require_dealer_signature(context: Context, dealer: PublicKeys, own: str, given: DeliveredShare) -> None:
    """Raises PrivacyError for shares that their dealer has not signed.

    A complaint about them would tell the aggregator, which has the true ones, how to open these.
    """
    try:
        require_share_signature(context, dealer.client, own, given, identity_key(dealer.identity))
    except ProtocolError as error:
        raise PrivacyError(str(error)) from None


Members = Mapping[str, PublicKey]
"""The clients that a silo knows, and the key of each."""


def require_protective_roster(state: BegunState, roster: Roster, colluders: float = graph.COLLUDERS) -> None:
    """Raises PrivacyError for a roster that does not protect this client.

    It has other terms than the round began with, lacks this client's own keys, has too few clients or too low a
    threshold, or another graph than follows from bounds that bear this share of colluders.
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
    graph.require_planned_graph(roster, colluders)


def require_members(roster: Roster, members: Members) -> None:
    """Raises PrivacyError unless every key belongs to a known member with the same terms.

    Each is a known client's, has the same terms, and sums over the same list of items; for the signatures see
    `require_signed_keys`.
    """
    for one in roster.members:
        if one.client not in members:
            raise PrivacyError(f"expected clients that this silo knows as members, got {one.client!r}")
        if one.identity != raw_hex(members[one.client]):
            raise PrivacyError(f"expected the key that this silo knows of {one.client!r}, got another")
        _require_same(roster.terms.common, one.common, f"{one.client!r}")
    if (difference := describe_unlike_lists(roster.members)) is not None:
        raise PrivacyError(difference)


def require_signed_keys(roster: Roster, names: Iterable[str]) -> None:
    """Raises PrivacyError unless these members have signed their keys.

    On the full graph they also prove that they know the secret; on a graph before a complaint, which alone needs it.
    """
    for one in (roster.keys[name] for name in names):
        try:
            require_signature(one, identity_key(one.identity))
            if roster.graph is None:
                require_possession(bytes.fromhex(one.deal), one.possession, possession_label(roster.terms, one.client))
        except ProtocolError as error:
            raise PrivacyError(str(error)) from None


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
    drawn = None if terms.common.graph is None else graph.derive_draw(scalars["deal"], terms, client)
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
        draw=None if drawn is None else graph.commit_draw(drawn),
    )
    secrets = Secrets(**{name: encode_scalar(scalar) for name, scalar in scalars.items()})
    return BegunState(client=client, terms=terms, secrets=secrets, message=sign_message(message, identity))


def share_secrets(
    state: BegunState,
    roster: Roster,
    members: Members,
    identity: PrivateKey,
    *,
    colluders: float = graph.COLLUDERS,
) -> SharingState:
    """Shares both secrets among the client's neighbours, each share sealed for its holder.

    colluders: share of the members that a graph must bear. Raises PrivacyError for a roster that would not protect
    this client: too few clients, too low a threshold, too sparse a graph, not its own keys, keys that their owner has
    not signed, or a client with other terms. On a graph the signatures of those who are no neighbours of this client
    are left until something is masked with them: see `mask_update`.
    """
    require_protective_roster(state, roster, colluders)
    require_members(roster, members)
    own_draw, context = _own_draw(roster, state), roster.context
    others = set(_own_neighbours(roster, state))
    require_signed_keys(roster, sorted(others))  # nothing is sealed for a key of the aggregator's making
    holders = sorted({state.client, *others})
    sharing = split_secrets(context, state.client, state.secrets, holders, roster.share_threshold)
    own = sharing.pieces[state.client]
    message = SealedShares(
        **_roster_fields(context, state.client),
        shares=seal_pieces(state, roster, sharing, sorted(others)),
        own=own.committed,
        challenge=sharing.challenge,
        key_proof=sharing.key_proof,
        seed_proof=sharing.seed_proof,
        draw=own_draw,
    )
    signed = sign_shares(message, identity)
    return SharingState(client=state.client, secrets=state.secrets, roster=roster, own=own.pair, message=signed)


def _own_draw(roster: Roster, state: State) -> str | None:
    """Returns the number that has drawn this client's neighbours; None on the full graph."""
    if roster.graph is None:
        return None
    return graph.derive_draw(int(state.secrets.deal, 16), roster.terms, state.client)


def _own_neighbours(roster: Roster, state: State) -> tuple[str, ...]:
    """Returns the clients that hold shares of this client's secrets, without itself."""
    if (draw := _own_draw(roster, state)) is None:
        return tuple(name for name in roster.names if name != state.client)
    return graph.find_holders(roster, state.client, draw)


def check_shares(
    state: SharingState, delivery: Delivery, identity: PrivateKey, pairs: PairKeys | None = None
) -> CheckedState:
    """Opens the shares of all sharers, and complains with proof about invalid ones.

    pairs: makes the tags that tell each member which roster this client has seen.

    They are opened now and not when they are needed, so that nothing is masked with a client whose secrets could not
    be restored. Raises PrivacyError for sharers that are too few or not of the roster, and for shares that their
    dealer has not signed.
    """
    require_round(state.roster.terms, delivery)
    _require_known(state.roster, state.client, {*delivery.shares, state.client})
    if state.roster.graph is None:
        _require_enough(state.roster, {*delivery.shares, state.client})
    shares, refused = open_delivery(state, delivery)
    names = () if state.roster.graph is None else state.roster.names
    tags = _make_tags(state.roster, state.client, names, "roster", pairs)
    message = ShareCheck(**_roster_fields(state.roster.context, state.client), complaints=refused, tags=tags)
    return CheckedState(
        client=state.client,
        secrets=state.secrets,
        roster=state.roster,
        shares=shares,
        message=sign_message(message, identity),
    )


def _make_tags(
    roster: Roster, own: str, names: Iterable[str], purpose: str, pairs: PairKeys | None, content: bytes = b""
) -> dict[str, str]:
    """Makes this client's tags of a content for other members; none without keys."""
    if pairs is None:
        return {}
    members, said = roster.keys, _tagged_digest(roster, purpose, content)
    pairs.agree(members[name].identity for name in names if name != own)
    made = ((name, pairs.make_tag(members[name].identity, said)) for name in names if name != own)
    return {name: tag for name, tag in made if tag is not None}


def _find_tagged(
    roster: Roster, tags: Mapping[str, str], purpose: str, pairs: PairKeys | None, content: bytes = b""
) -> set[str]:
    """Finds the members that have tagged a content for this client."""
    if pairs is None or roster.graph is None:
        return set()
    members, said = roster.keys, _tagged_digest(roster, purpose, content)
    return {
        name for name, tag in tags.items() if name in members and pairs.is_tag_of(members[name].identity, said, tag)
    }


def _tagged_digest(roster: Roster, purpose: str, content: bytes) -> bytes:
    """Computes the digest that all tags for one purpose are of.

    A tag's key and direction name its sender.
    """
    return hashlib.sha256(roster.context.label(f"tagged {purpose}", "", "") + content).digest()


def _require_known(roster: Roster, own: str, sharers: set[str]) -> None:
    if not sharers <= set(roster.names) or own not in sharers:
        raise PrivacyError("expected sharers of the roster and this client among them, got others")


def _require_enough(roster: Roster, sharers: Collection[str]) -> None:
    if len(sharers) < roster.fewest:
        raise PrivacyError(f"expected at least {roster.fewest} sharers, got {len(sharers)}")


def mask_update(
    state: CheckedState | ReadyState,
    sharers: Sharers,
    content: Parameters,
    identity: PrivateKey,
    pairs: PairKeys | None = None,
) -> tuple[ReadyState, MaskedUpdate]:
    """Masks an update with the client's own mask and those shared with neighbours.

    The same input gives the same result. Raises ConflictError for another update or other sharers in the same round:
    the difference would be readable. Raises PrivacyError for sharers that are too few, that have shared with this
    client without its holding the share, or that have neither signed their keys nor tagged the roster with them.
    """
    require_round(state.roster.terms, sharers)
    _require_known(state.roster, state.client, set(sharers.sharers))
    _require_enough(state.roster, sharers.sharers)
    neighbours = _find_neighbours(state, sharers)
    if unheld := neighbours.dealers - set(state.shares):
        raise PrivacyError(f"expected sharers whose shares this client holds, got {len(unheld)} others")
    _require_authentic(state, sharers, pairs)
    if isinstance(state, CheckedState) and set(state.message.complaints) & set(sharers.sharers):
        raise PrivacyError("expected sharers whose shares this client could open, got one that it has complained of")
    terms = state.roster.terms
    encoded = vectors.encode_vector(terms.declaration, content)
    ready = _fix_sharers(state, sharers, neighbours.peers, vectors.digest_vector(encoded))
    masked = vectors.mask_vector(vectors.vector_layout(terms.declaration), encoded, list_mask_streams(ready))
    visible = visible_scalars(terms.declaration)
    scalars = {name: value for name, value in content.scalars.items() if name in visible}
    sent = vectors.digest_vector(masked)
    peers = None
    if state.roster.graph is not None:
        peers = sign_peers(state.roster.context, state.client, sharers.sharers, identity)
    place = {"run": terms.run, "round": terms.round, "client": state.client}
    header = MaskedHeader(**place, digest=sent, scalars=scalars, peers=peers)
    return ready, MaskedUpdate(header, masked)


def _require_authentic(state: CheckedState | ReadyState, sharers: Sharers, pairs: PairKeys | None) -> None:
    """Raises PrivacyError unless the keys in the roster are those of each sharer.

    An honest client tags only a roster with its own keys; without its tag its signature under the keys counts. Those
    of the neighbours that this client has drawn were verified before it shared with them.
    """
    roster, own = state.roster, state.client
    if roster.graph is not None:
        known = {own, *_own_neighbours(roster, state), *_find_tagged(roster, sharers.tags, "roster", pairs)}
        require_signed_keys(roster, [name for name in sharers.sharers if name not in known])


def _find_neighbours(state: CheckedState | ReadyState, sharers: Sharers) -> graph.Neighbours:
    try:
        return graph.find_neighbours(state.roster, state.client, sharers.sharers, sharers.draws)
    except ProtocolError as error:
        raise PrivacyError(str(error)) from None


def _fix_sharers(state: CheckedState | ReadyState, sharers: Sharers, peers: set[str], digest: str) -> ReadyState:
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
        shares={name: state.shares[name] for name in sharers.sharers if name in state.shares},
        listed=None if state.roster.graph is None else sharers.sharers,
        masks_with=None if state.roster.graph is None else tuple(sorted(peers)),
        sent=digest,
        proven=_require_proven(state.roster, sharers),
    )


def _require_proven(roster: Roster, sharers: Sharers) -> tuple[str, ...]:
    """Lists expelled clients; raises ProtocolError for evidence that does not hold."""
    for one in sharers.evidence:
        proofs.require_valid_evidence(roster, one)
    return tuple(sorted({one.dealer for one in sharers.evidence}))


def list_mask_streams(state: ReadyState) -> tuple[MaskStream, ...]:
    """Returns this client's own mask stream, and those shared with others."""
    context, members, own = state.roster.context, state.roster.keys, state.client
    private, seed = int(state.secrets.mask, 16), int(state.secrets.seed, 16)
    peers = sorted(set(state.shares) - {own}) if state.masks_with is None else state.masks_with
    public = {name: bytes.fromhex(members[name].mask) for name in peers}
    agreed = keys.agree_on_masks(private, public, context, own)
    pairwise = (MaskStream(key, vectors.mask_sign(own, name)) for name, key in agreed.items())
    return (MaskStream(keys.derive_self_mask(seed, context, own), 1), *pairwise)


def sign_consent(
    state: ReadyState, request: UnmaskRequest, identity: PrivateKey, pairs: PairKeys | None = None
) -> tuple[ReadyState, Consent]:
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
    names = () if state.roster.graph is None else request.survivors
    tags = _make_tags(state.roster, state.client, names, "lists", pairs, _lists_digest(message))
    signed = sign_message(message.model_copy(update={"tags": tags}), identity)
    return state.model_copy(update={"consent": signed}), signed


def _lists_digest(consent: Consent) -> bytes:
    lists = ("\n".join(names) for names in (consent.survivors, consent.dropped))
    return hashlib.sha256("\n\n".join(lists).encode()).digest()


def _require_valid_lists(state: ReadyState, request: UnmaskRequest) -> None:
    survivors, dropped, fewest = set(request.survivors), set(request.dropped), state.roster.fewest
    if both := len(survivors & dropped):
        raise PrivacyError(f"expected one kind of share for each client, got a request for both kinds of {both}")
    if survivors | dropped != set(state.sharers):
        words = f"expected a request about all {len(state.sharers)} sharers and no other client"
        raise PrivacyError(f"{words}, got another")
    if len(survivors) < fewest:
        raise PrivacyError(f"expected at least {fewest} survivors, got {len(survivors)}")
    if state.client not in survivors:
        raise RoundClosedError("expected this client's masked vector to be in the sum, it is not")


def answer_unmask_request(state: ReadyState, consents: Consents, pairs: PairKeys | None = None) -> UnmaskAnswer:
    """Returns the shares that unmask the sum, once enough survivors have agreed.

    Shares of the survivors' seeds and of the drop-outs' mask keys. Raises PrivacyError for too few signatures, for
    one that is not a survivor's under the same lists, and on a graph for a survivor that was told of other sharers.
    """
    require_round(state.roster.terms, consents)
    if state.consent is None:
        raise PrivacyError("expected a request after this client's consent, got one before it")
    tagged = _find_tagged(state.roster, consents.tags, "lists", pairs, _lists_digest(state.consent))
    agreed = _require_agreed(state.roster, state.consent, consents, tagged & set(consents.signatures))
    _require_same_sharers(state, state.consent, consents, agreed)
    return UnmaskAnswer(
        run=consents.run,
        round=consents.round,
        client=state.client,
        seeds={name: state.shares[name].seed for name in state.consent.survivors if name in state.shares},
        keys={name: state.shares[name].key for name in state.consent.dropped if name in state.shares},
    )


def _require_agreed(roster: Roster, own: Consent, consents: Consents, tagged: set[str]) -> set[str]:
    """Returns the survivors that are known to have agreed to the same lists.

    tagged: those whose tag says so. Raises PrivacyError if there are too few.
    """
    if not set(consents.signatures) <= set(own.survivors):
        raise PrivacyError("expected signatures of survivors alone, got others")
    if len(consents.signatures) < roster.terms.threshold:
        words = f"expected at least {roster.terms.threshold} survivors to have signed the same lists"
        raise PrivacyError(f"{words}, got {len(consents.signatures)}")
    agreed, others = set(tagged), sorted(set(consents.signatures) - tagged)
    if roster.graph is not None:  # on the full graph all are verified
        others = others[: max(0, roster.terms.threshold - len(agreed))]
    for name in others:
        try:
            _require_consent(roster, own, name, consents.signatures[name])
        except ProtocolError as error:
            raise PrivacyError(f"{error}: it has seen other lists, or none") from None
        agreed.add(name)
    return agreed


def _require_consent(roster: Roster, own: Consent, name: str, signature: str) -> None:
    """Raises ProtocolError unless a survivor has signed the lists that this client has signed."""
    theirs = own.model_copy(update={"client": name, "signature": signature})
    require_signature(theirs, identity_key(roster.keys[name].identity))


def _require_same_sharers(state: ReadyState, own: Consent, consents: Consents, agreed: set[str]) -> None:
    """Raises PrivacyError unless the survivors whose shares it holds were told of the same sharers.

    On a graph: who was told of few sharers is masked with few, and its seed would then uncover its vector. A client
    agrees only to lists that divide its own sharers, so that its consent tells them; who has not consented has signed
    them with its vector.
    """
    if state.roster.graph is None:
        return
    members, context = state.roster.keys, state.roster.context
    for name in sorted(set(state.shares) & set(own.survivors) - {state.client, *agreed}):
        try:
            if (signature := consents.signatures.get(name)) is not None:
                _require_consent(state.roster, own, name, signature)
            else:
                key = identity_key(members[name].identity)
                require_peers(context, name, state.sharers, consents.peers.get(name), key)
        except ProtocolError as error:
            raise PrivacyError(f"{error}: it has masked with others, or with nobody") from None
