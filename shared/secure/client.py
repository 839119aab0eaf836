"""A client's side of a secure round: begin -> share -> take -> mask -> unmask.

Each step takes a state and gives the next one with the message to send; a state changes only by a step that succeeds.
The caller keeps the new state (it holds secrets: a file with mode 0600) *before* it sends the message, and deletes it
when the round is over; `state.written` and `state.read` are its form on disk. After a restart every message can be
had again from what was kept: `public_keys`, `Sharing.message`, and by `mask` and `unmask` with what they had before.
"""

from __future__ import annotations

from pydantic import ValidationError

from shared.errors import ConflictError, PrivacyError, ProtocolError, RoundClosedError
from shared.secure import keys, masks, shamir, vector
from shared.secure.keys import Context
from shared.secure.masks import Mask
from shared.secure.messages import (
    Delivery,
    MaskedHeader,
    PublicKeys,
    Roster,
    SealedShares,
    Terms,
    UnmaskAnswer,
    UnmaskRequest,
    least_threshold,
    require_round,
)
from shared.secure.state import Begun, Ready, Secrets, SharePair, Sharing
from shared.secure.vector import MaskedUpdate
from shared.strategy import Parameters


def begin(terms: Terms, client: str) -> tuple[Begun, PublicKeys]:
    """Fresh keys for one round."""
    cipher, mask, seed = keys.new_private(), keys.new_private(), keys.new_seed()
    state = Begun(client=client, terms=terms, secrets=Secrets(cipher=cipher.hex(), mask=mask.hex(), seed=seed.hex()))
    return state, public_keys(state)


def public_keys(state: Begun) -> PublicKeys:
    """What others may know of a client's keys."""
    return PublicKeys(
        run=state.terms.run,
        round=state.terms.round,
        client=state.client,
        cipher=keys.public(bytes.fromhex(state.secrets.cipher)).hex(),
        mask=keys.public(bytes.fromhex(state.secrets.mask)).hex(),
        commitment=keys.commitment(bytes.fromhex(state.secrets.seed)),
    )


def share(state: Begun, roster: Roster) -> tuple[Sharing, SealedShares]:
    """Split both secrets among all clients of the roster, each share sealed for its holder.

    PrivacyError for a roster that would not protect this client: too few, too low a threshold, or not its own keys.
    """
    _require_fair(state, roster)
    pairs = _split(state.secrets, roster)
    context, cipher = roster.context, bytes.fromhex(state.secrets.cipher)
    sealed = {
        peer.client: _seal(cipher, peer, context, state.client, pairs[peer.client])
        for peer in roster.members
        if peer.client != state.client
    }
    message = SealedShares(run=context.run, round=context.round, client=state.client, sealed=sealed)
    own = pairs[state.client]
    return Sharing(client=state.client, secrets=state.secrets, roster=roster, own=own, message=message), message


def _require_fair(state: Begun, roster: Roster) -> None:
    if roster.terms != state.terms:
        raise ProtocolError(f"expected the terms that round {state.terms.round} began with, got others")
    if roster.keys.get(state.client) != public_keys(state):
        raise PrivacyError("expected this client's own public keys in the roster, got others or none")
    count, threshold = len(roster.members), roster.terms.threshold
    if count < threshold:
        raise PrivacyError(f"expected at least {threshold} clients in the roster, got {count}")
    if threshold < least_threshold(count):
        raise PrivacyError(f"expected a threshold of at least {least_threshold(count)} of {count}, got {threshold}")


def _split(secrets: Secrets, roster: Roster) -> dict[str, SharePair]:
    count, threshold = len(roster.members), roster.terms.threshold
    seeds = shamir.split(bytes.fromhex(secrets.seed), count, threshold)
    mask_keys = shamir.split(bytes.fromhex(secrets.mask), count, threshold)
    pairs = (SharePair(seed=_hex(seed), key=_hex(key)) for seed, key in zip(seeds, mask_keys, strict=True))
    return dict(zip(roster.names, pairs, strict=True))


def _hex(share: int) -> str:
    return share.to_bytes(shamir.SHARE_BYTES).hex()


def _seal(cipher: bytes, peer: PublicKeys, context: Context, own: str, pair: SharePair) -> str:
    key = keys.agree(cipher, bytes.fromhex(peer.cipher), context.label("seal", own, peer.client))
    return keys.seal(key, bytes.fromhex(pair.seed + pair.key), context.label("shares", own, peer.client)).hex()


def take(state: Sharing, delivery: Delivery) -> Ready:
    """Open the shares of everybody who has shared. ProtocolError if one is not as its sender sealed it.

    They are opened now and not when they are needed, so that nothing masked leaves in a round that was tampered with.
    """
    require_round(state.roster.terms, delivery)
    _require_sharers(state, delivery)
    context, members = state.roster.context, state.roster.keys
    opened = {name: _unseal(state, members[name], context, sealed) for name, sealed in delivery.sealed.items()}
    shares = {**opened, state.client: state.own}
    return Ready(client=state.client, secrets=state.secrets, roster=state.roster, shares=shares)


def _require_sharers(state: Sharing, delivery: Delivery) -> None:
    sharers, roster = set(delivery.sharers), state.roster
    if not sharers <= set(roster.names) or state.client not in sharers:
        raise PrivacyError("expected sharers of the roster and this client among them, got others")
    if len(sharers) < roster.terms.threshold:
        raise PrivacyError(f"expected at least {roster.terms.threshold} sharers, got {len(sharers)}")
    if set(delivery.sealed) != sharers - {state.client}:
        raise ProtocolError(f"expected sealed shares of {len(sharers) - 1} others, got {len(delivery.sealed)}")


def _unseal(state: Sharing, peer: PublicKeys, context: Context, sealed: str) -> SharePair:
    names, private = (peer.client, state.client), bytes.fromhex(state.secrets.cipher)
    key = keys.agree(private, bytes.fromhex(peer.cipher), context.label("seal", *names))
    content = keys.unseal(key, bytes.fromhex(sealed), context.label("shares", *names)).hex()
    try:
        return SharePair(seed=content[: 2 * shamir.SHARE_BYTES], key=content[2 * shamir.SHARE_BYTES :])
    except ValidationError:
        raise ProtocolError("expected two shares in a sealed message, got something else") from None


def mask(state: Ready, content: Parameters) -> tuple[Ready, MaskedUpdate]:
    """Encode, add the client's own mask and those it has with every other sharer.

    The same content again gives the same; other content is a ConflictError: under the same masks the difference of the
    two would lie open.
    """
    terms = state.roster.terms
    encoded = vector.encode(terms, content)
    digest = vector.digest(encoded)
    if state.sent not in (None, digest):
        raise ConflictError(f"round {terms.round}: expected the update that was masked before, got another")
    chosen = own_masks(state)
    masked = {name: masks.added(value, chosen, piece=piece) for piece, (name, value) in enumerate(encoded.items())}
    scalars = {name: value for name, value in content.scalars.items() if name in terms.visible}
    sent = vector.digest(masked)
    header = MaskedHeader(run=terms.run, round=terms.round, client=state.client, digest=sent, scalars=scalars)
    return state.model_copy(update={"sent": digest}), MaskedUpdate(header, masked)


def own_masks(state: Ready) -> tuple[Mask, ...]:
    """The self mask, and one for every other client that has shared."""
    context, members, own = state.roster.context, state.roster.keys, state.client
    private = bytes.fromhex(state.secrets.mask)
    pairwise = (
        Mask(keys.pair_seed(private, bytes.fromhex(members[name].mask), context, own, name), masks.sign_of(own, name))
        for name in state.shares
        if name != own
    )
    return (Mask(bytes.fromhex(state.secrets.seed), 1), *pairwise)


def unmask(state: Ready, request: UnmaskRequest) -> tuple[Ready, UnmaskAnswer]:
    """Give shares of the survivors' seeds and of the drop-outs' mask keys: never both of one client, and only once.

    With both kinds the aggregator could strip one client's vector of all its masks, hence PrivacyError for a request
    that does not divide the sharers in two with enough survivors, or that differs from the one answered before.
    """
    require_round(state.roster.terms, request)
    _require_harmless(state, request)
    answer = UnmaskAnswer(
        run=request.run,
        round=request.round,
        client=state.client,
        seeds={name: state.shares[name].seed for name in request.survivors},
        keys={name: state.shares[name].key for name in request.dropped},
    )
    return state.model_copy(update={"answered": request}), answer


def _require_harmless(state: Ready, request: UnmaskRequest) -> None:
    survivors, dropped, threshold = set(request.survivors), set(request.dropped), state.roster.terms.threshold
    if both := len(survivors & dropped):
        raise PrivacyError(f"expected one kind of share for each client, got a request for both kinds of {both}")
    if survivors | dropped != set(state.shares):
        raise PrivacyError(f"expected a request about all {len(state.shares)} sharers and nobody else, got another")
    if len(survivors) < threshold:
        raise PrivacyError(f"expected at least {threshold} survivors, got {len(survivors)}")
    if state.sent is None or state.client not in survivors:
        raise RoundClosedError("expected to be asked once this client's masked vector is in, it is not")
    if state.answered not in (None, request):
        raise PrivacyError("expected the request that was answered before, got another one for the same round")
