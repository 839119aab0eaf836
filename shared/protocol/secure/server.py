"""Aggregator's side of a secure round, up to the mean of the survivors (Eq. 13)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from pydantic import Field

from shared.errors import ConflictError, NotFoundError, ProtocolError, RoundClosedError, UnavailableError
from shared.message import Message
from shared.method.parameters import STORED, Array, Form, Parameters, Scalars, array_part, blocks
from shared.protocol.schemas import ClientName
from shared.protocol.secure import graph, group, keys, shamir
from shared.protocol.secure import vectors as masks
from shared.protocol.secure import vectors as vector
from shared.protocol.secure.messages import (
    ClientMessage,
    Consent,
    Consents,
    Delivery,
    ExpulsionEvidence,
    MaskedHeader,
    PublicKeys,
    Roster,
    RoundTerms,
    SealedShares,
    ShareCheck,
    Sharers,
    UnmaskAnswer,
    UnmaskRequest,
    least_threshold,
    require_round,
    visible_scalars,
)
from shared.protocol.secure.proofs import identity_key, require_peers
from shared.protocol.secure.vectors import MaskStream, Vector


def unmask_mean(state: SecureRound, vectors: Mapping[str, Vector]) -> Parameters:
    """Computes the mean arrays and hidden scalars of the survivors.

    vectors: theirs by client, read when needed. Raises UnavailableError with fewer answers than the threshold,
    ProtocolError if they restore other secrets than published.
    """
    if set(vectors) != set(state.survivors):
        raise ProtocolError(f"expected the vectors of {len(state.survivors)} survivors, got {len(vectors)} or others'")
    left = restore_masks(state)
    return vector.decode_mean(state.terms.declaration, _unmask(state, vectors, left), len(vectors))


def _unmask(
    state: SecureRound, vectors: Mapping[str, Vector], left: tuple[MaskStream, ...]
) -> Iterator[tuple[str, Array]]:
    layout, given = vector.vector_layout(state.terms.declaration), [vectors[client] for client in state.survivors]
    for piece, names in enumerate(masks.mask_pieces(layout)):
        total = np.concatenate([sum_tensor(name, layout[name], given) for name in names])
        masks.add_masks_in_place(total, left, piece=piece)
        yield from masks.split_piece(layout, names, total).items()


def sum_tensor(name: str, form: Form, vectors: Sequence[Vector]) -> Array:
    """Sums one tensor of all vectors, still masked, in one dimension."""
    total = np.zeros(form.size, dtype=STORED[form.dtype])
    for begin, end in blocks(form.size):
        for one in vectors:
            total[begin:end] += array_part(one, name, begin, end)
    return total


def restore_masks(state: SecureRound) -> tuple[MaskStream, ...]:
    """Restores the masks to subtract from the sum.

    They are the survivors' own masks, and the masks that survivors share with clients that dropped out after checking
    their shares.
    """
    require_answers(state)
    everybody = make_roster(state)
    context, members = everybody.context, everybody.keys
    own = (
        MaskStream(keys.derive_self_mask(_restore(state, name, members[name].commitment, "seeds"), context, name), -1)
        for name in state.survivors
    )
    lost = {name: _restore(state, name, members[name].mask, "keys") for name in state.dropped}
    return (*own, *_restore_pairwise(state, everybody, lost))


def _restore(state: SecureRound, dealer: str, published: str, kind: Literal["seeds", "keys"]) -> int:
    """Restores a client's secret from shares, and checks it against its published point."""
    threshold = make_roster(state).share_threshold
    places = {name: x for x, name in enumerate(state.shares[dealer].holders, start=1)}
    chosen = [name for name in sorted(places) if name in state.answers][:threshold]
    shares = {places[name]: int(getattr(state.answers[name], kind)[dealer], 16) for name in chosen}
    secret = shamir.restore_secret(shares, shamir.lagrange_weights(tuple(shares)))
    if group.multiply_base(secret).hex() != published:
        raise ProtocolError(f"expected shares of the secret that {dealer!r} has published a point of, got others")
    return secret


def _restore_pairwise(state: SecureRound, roster: Roster, lost: Mapping[str, int]) -> Iterator[MaskStream]:
    """Yields the masks that survivors share with drop-outs, by these' restored mask keys."""
    context, public = roster.context, {name: bytes.fromhex(member.mask) for name, member in roster.keys.items()}
    draws = {name: draw for name in state.sharers if (draw := state.shares[name].draw) is not None}
    for name, private in lost.items():
        others = sorted(graph.find_neighbours(roster, name, state.sharers, draws).peers & set(state.survivors))
        for other, seed in keys.agree_on_masks(private, {one: public[one] for one in others}, context, name).items():
            yield MaskStream(seed, masks.mask_sign(name, other))


Phase = Literal["keys", "shares", "checks", "masked", "consents", "answers"]
PHASES: tuple[Phase, ...] = get_args(Phase)
RelayedMessage = PublicKeys | SealedShares | ShareCheck | Consent | UnmaskAnswer
PHASE_OF: Mapping[type[ClientMessage], Phase] = {
    PublicKeys: "keys",
    SealedShares: "shares",
    ShareCheck: "checks",
    MaskedHeader: "masked",
    Consent: "consents",
    UnmaskAnswer: "answers",
}


class SecureRound(Message):
    """State of a secure round: its phase, and each phase's messages by client."""

    terms: RoundTerms
    phase: Phase = "keys"
    keys: Mapping[ClientName, PublicKeys] = Field(default_factory=dict)
    shares: Mapping[ClientName, SealedShares] = Field(default_factory=dict)
    checks: Mapping[ClientName, ShareCheck] = Field(default_factory=dict)
    masked: Mapping[ClientName, MaskedHeader] = Field(default_factory=dict)
    consents: Mapping[ClientName, Consent] = Field(default_factory=dict)
    answers: Mapping[ClientName, UnmaskAnswer] = Field(default_factory=dict)

    def collected(self, phase: Phase) -> Mapping[str, ClientMessage]:
        """Returns the messages of a phase, by client."""
        held: Mapping[str, ClientMessage] = getattr(self, phase)
        return held

    @property
    def expelled(self) -> frozenset[str]:
        """Clients that a proven complaint has expelled from the round."""
        return frozenset(dealer for check in self.checks.values() for dealer in check.complaints)

    @property
    def missing(self) -> tuple[str, ...]:
        """Clients still expected in this phase, sorted.

        Empty in phase `keys`: every client that comes in time takes part.
        """
        before = PHASES[max(0, PHASES.index(self.phase) - 1)]
        return tuple(sorted(set(self.collected(before)) - set(self.collected(self.phase)) - self.expelled))

    @property
    def sharers(self) -> tuple[str, ...]:
        """Clients that mask with each other: all who hold every sharer's shares."""
        return tuple(sorted(set(self.checks) - self.expelled))

    @property
    def survivors(self) -> tuple[str, ...]:
        """Clients whose vectors are in the sum."""
        return tuple(sorted(self.masked))

    @property
    def dropped(self) -> tuple[str, ...]:
        """Clients that sent no vector although others' vectors hold masks shared with them."""
        return tuple(sorted(set(self.sharers) - set(self.masked)))

    @property
    def open_scalars(self) -> dict[str, Scalars]:
        """Readable scalars of each survivor: rho, from which Eq. 12 computes rhobar."""
        return {name: dict(self.masked[name].scalars) for name in self.survivors}


def accept_message(state: SecureRound, message: RelayedMessage) -> SecureRound:
    """Adds a verified message of the current phase; a repeat changes nothing.

    Raises ProtocolError (message of another round, or invalid), RoundClosedError (of another phase), NotFoundError (the
    client was not in the previous phase), ConflictError (another message of that client came before).
    """
    return _add_message(state, PHASE_OF[type(message)], message)


def accept_header(state: SecureRound, header: MaskedHeader) -> SecureRound:
    """Adds the header of a masked vector.

    The vector stays with the caller, who has checked it against this header.
    """
    return _add_message(state, "masked", header)


def _add_message(state: SecureRound, phase: Phase, message: ClientMessage) -> SecureRound:
    require_round(state.terms, message)
    collected = state.collected(phase)
    if (held := collected.get(message.client)) is not None:
        if held != message:
            raise ConflictError(
                f"round {message.round}: another message of {message.client!r} came before in this phase"
            )
        return state
    if phase != state.phase:
        raise RoundClosedError(f"round {message.round}: expected a message of phase {state.phase}, got one of {phase}")
    require_expected(state, phase, message)
    return state.model_copy(update={phase: {**collected, message.client: message}})


def require_expected(state: SecureRound, phase: Phase, message: ClientMessage) -> None:
    """Raises an error for a message that this phase does not expect.

    NotFoundError for a client that was not in the phase before, RoundClosedError for keys without room, ProtocolError
    for a message about other clients than expected.
    """
    if phase != "keys" and message.client not in state.missing:
        raise NotFoundError(f"client {message.client!r} did not take part in the phase before {phase}")
    match message:
        case PublicKeys():
            _require_room(state)
        case SealedShares():
            _require_names("sealed shares", set(message.shares), _expected_holders(state, message))
        case ShareCheck():
            dealers = {name for name, sent in state.shares.items() if message.client in sent.shares}
            if not set(message.complaints) <= dealers:
                raise ProtocolError(
                    "expected complaints about other sharers that have shared with the sender, got others"
                )
            _require_tags(message.tags, set(state.keys))
        case MaskedHeader():
            if not set(message.scalars) <= (visible := visible_scalars(state.terms.declaration)):
                raise ProtocolError(f"expected at most the open scalars {sorted(visible)}, got others")
            _require_peers(state, message)
        case Consent():
            if (message.survivors, message.dropped) != (state.survivors, state.dropped):
                raise ProtocolError("expected consent to the lists that were asked for, got consent to others")
            _require_tags(message.tags, set(state.survivors))
        case UnmaskAnswer():
            held = {dealer for dealer, sent in state.shares.items() if sent.reaches(message.client)}
            _require_names("shares of seeds", set(message.seeds), held & set(state.survivors))
            _require_names("shares of mask keys", set(message.keys), held & set(state.dropped))


def _expected_holders(state: SecureRound, message: SealedShares) -> set[str]:
    """Returns the clients that a sharer must share with.

    Raises ProtocolError on a graph unless it has drawn them as its keys commit to: of its own choice they could be
    clients who never answer, so that nobody could restore its secrets.
    """
    everybody = make_roster(state)
    if everybody.graph is None:
        return set(state.keys) - {message.client}
    return set(
        graph.find_holders(everybody, message.client, graph.require_draw(everybody, message.client, message.draw))
    )


def _require_peers(state: SecureRound, message: MaskedHeader) -> None:
    """Raises ProtocolError on a graph unless the sender has signed the list of sharers."""
    everybody = make_roster(state)
    if everybody.graph is not None:
        key = identity_key(state.keys[message.client].identity)
        require_peers(everybody.context, message.client, state.sharers, message.peers, key)


def _require_room(state: SecureRound) -> None:
    threshold, held = state.terms.threshold, len(state.keys)
    if least_threshold(held + 1) > threshold:
        raise RoundClosedError(f"expected at most {held} clients with a threshold of {threshold}, got one more")


def _require_tags(tags: Mapping[str, str], members: set[str]) -> None:
    if not set(tags) <= members:
        raise ProtocolError("expected tags for members of the round alone, got others")


def _require_names(what: str, came: set[str], expected: set[str]) -> None:
    if came != expected:
        raise ProtocolError(f"expected {what} for {len(expected)} clients of the round, got {len(came)} or other names")


def require_answers(state: SecureRound) -> None:
    """Raises RoundClosedError before phase `answers`, UnavailableError below the threshold."""
    _require_closed(state, "consents")
    _require_enough(state)


def _require_enough(state: SecureRound) -> None:
    came, fewest = count_present(state), fewest_present(state)
    still = f", missing {', '.join(state.missing)}" if state.missing else ""
    what = f"round {state.terms.round}, phase {state.phase}"
    if came < fewest:
        raise UnavailableError(f"{what}: expected at least {fewest} clients, got {came}{still}")
    if state.phase == "answers" and (dealer := _find_unrestorable(state)) is not None:
        raise UnavailableError(f"{what}: expected more neighbours of {dealer} to answer, got too few{still}")


def fewest_present(state: SecureRound) -> int:
    """Returns the smallest number of clients with which this phase can close."""
    if state.phase in ("shares", "checks", "masked"):
        return make_roster(state).fewest
    return state.terms.threshold


def can_restore(state: SecureRound) -> bool:
    """Tells whether the answers are enough to restore every secret that masks the sum."""
    return count_present(state) >= state.terms.threshold and _find_unrestorable(state) is None


def _find_unrestorable(state: SecureRound) -> str | None:
    """Finds a sharer whose secret needs more answers; None if there is none."""
    everybody = make_roster(state)
    if everybody.graph is None:
        return None
    answered, threshold = set(state.answers), everybody.share_threshold
    short = (name for name in state.sharers if state.shares[name].count_holders(answered) < threshold)
    return next(short, None)


def count_present(state: SecureRound) -> int:
    """Counts the clients of this phase that were not expelled."""
    return len(set(state.collected(state.phase)) - state.expelled)


def close_phase(state: SecureRound) -> SecureRound:
    """Closes the phase and returns the state of the next; its clients go on.

    Raises UnavailableError if they are too few.
    """
    if state.phase == "answers":
        raise RoundClosedError(f"round {state.terms.round}: expected a phase before answers, which is the last")
    _require_enough(state)
    return state.model_copy(update={"phase": PHASES[PHASES.index(state.phase) + 1]})


def make_roster(state: SecureRound) -> Roster:
    """Makes the roster of all public keys, once phase `keys` is closed."""
    _require_closed(state, "keys")
    for terms, given, made in _MADE:
        if given is state.keys and terms is state.terms:
            return made
    bounds = state.terms.common.graph
    plan = None if bounds is None else graph.plan_graph(len(state.keys), bounds)
    members = tuple(state.keys[name] for name in sorted(state.keys))
    made = Roster(terms=state.terms, members=members, graph=plan)
    _MADE.append((state.terms, state.keys, made))
    return made


_MADE: deque[tuple[RoundTerms, Mapping[str, PublicKeys], Roster]] = deque(maxlen=4)
"""Newest rosters: each message of a round is held against its roster, which is long."""


def make_delivery(state: SecureRound, client: str) -> Delivery:
    """Makes the delivery for one client, once phase `shares` is closed."""
    _require_closed(state, "shares")
    if client not in state.shares:
        raise NotFoundError(f"client {client!r} has not shared in round {state.terms.round}")
    shares = {name: sent.deliver(client) for name, sent in state.shares.items() if client in sent.shares}
    return Delivery(run=state.terms.run, round=state.terms.round, shares=shares)


def make_sharers(state: SecureRound, client: str = "") -> Sharers:
    """Makes the list of sharers, once phase `checks` is closed.

    With one piece of evidence against each expelled client. client: whom the tags are for.
    """
    _require_closed(state, "checks")
    found: dict[str, ExpulsionEvidence] = {}
    for holder in sorted(state.checks):
        for dealer, complaint in state.checks[holder].complaints.items():
            share = state.shares[dealer].deliver(holder)
            found.setdefault(dealer, ExpulsionEvidence(dealer=dealer, holder=holder, share=share, complaint=complaint))
    evidence = tuple(found[dealer] for dealer in sorted(found))
    draws = {name: draw for name in state.sharers if (draw := state.shares[name].draw) is not None}
    place = {"run": state.terms.run, "round": state.terms.round}
    tags = {name: tag for name in state.sharers if (tag := state.checks[name].tags.get(client)) is not None}
    return Sharers(**place, sharers=state.sharers, evidence=evidence, draws=draws, tags=tags)


def make_unmask_request(state: SecureRound) -> UnmaskRequest:
    """Makes the request to unmask, once phase `masked` is closed."""
    _require_closed(state, "masked")
    return UnmaskRequest(run=state.terms.run, round=state.terms.round, survivors=state.survivors, dropped=state.dropped)


def make_consents(state: SecureRound, client: str = "") -> Consents:
    """Makes the list of the survivors' signatures, once phase `consents` is closed.

    client: whom the tags are for, and whose survivors without consent have signed the sharers.
    """
    _require_closed(state, "consents")
    given = {name: state.consents[name] for name in sorted(state.consents)}
    tags = {name: tag for name, consent in given.items() if (tag := consent.tags.get(client)) is not None}
    silent = (name for name in state.survivors if name not in given and client in state.shares[name].shares)
    peers = {name: signature for name in silent if (signature := state.masked[name].peers) is not None}
    signatures = {name: consent.signature for name, consent in given.items()}
    return Consents(run=state.terms.run, round=state.terms.round, signatures=signatures, tags=tags, peers=peers)


def _require_closed(state: SecureRound, phase: Phase) -> None:
    if PHASES.index(state.phase) <= PHASES.index(phase):
        raise RoundClosedError(f"round {state.terms.round}: phase {phase} is not closed yet")
