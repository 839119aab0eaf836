"""Verification of a secure round's messages against what was published before.

The functions change no state, and are slow: with a thousand clients some messages take a second. Without them a
cheating client could end the round without being identified.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.errors import ConflictError, ProtocolError
from shared.protocol.secure import group, proofs
from shared.protocol.secure.common import find_differences
from shared.protocol.secure.messages import (
    Consent,
    ExpulsionEvidence,
    PublicKeys,
    SealedShares,
    ShareCheck,
    UnmaskAnswer,
    possession_label,
)
from shared.protocol.secure.proofs import (
    ShareKind,
    identity_key,
    require_possession,
    require_signature,
    require_signed_shares,
)
from shared.protocol.secure.server import PHASE_OF, RelayedMessage, SecureRound, make_roster, require_expected


def verify_message(state: SecureRound, message: RelayedMessage) -> None:
    """Verifies a message's signature, commitments, shares or proofs.

    Raises ProtocolError if they do not hold, ConflictError for keys of a client whose terms differ from the
    aggregator's. Messages that `accept_message` would refuse in this state are not verified.
    """
    phase = PHASE_OF[type(message)]
    if phase != state.phase or message.client in state.collected(phase):
        return
    require_expected(state, phase, message)
    match message:
        case PublicKeys():
            _verify_keys(state, message)
        case SealedShares():
            _require_transcript(state, message)
            require_signed_shares(message, identity_key(state.keys[message.client].identity))
            _verify_commitments(state, message)
        case ShareCheck():
            _verify_signed(state, message)
            _verify_complaints(state, message)
        case Consent():
            _verify_signed(state, message)
        case UnmaskAnswer():
            _verify_shares(state, message)


def _verify_keys(state: SecureRound, message: PublicKeys) -> None:
    if differing := find_differences(state.terms.common, message.common):
        words = f"expected the terms of round {state.terms.round}, got another {', '.join(differing)}"
        raise ConflictError(f"{words}: compare this client's settings with the aggregator's")
    for point in (message.deal, message.cipher, message.mask, message.commitment):
        group.require_point(bytes.fromhex(point))
    require_possession(bytes.fromhex(message.deal), message.possession, possession_label(state.terms, message.client))
    require_signature(message, identity_key(message.identity))


def _require_transcript(state: SecureRound, message: SealedShares | ShareCheck | Consent) -> None:
    if message.transcript != make_roster(state).context.transcript:
        raise ProtocolError("expected a message about this round's roster, got one about another")


def _verify_signed(state: SecureRound, message: ShareCheck | Consent) -> None:
    _require_transcript(state, message)
    require_signature(message, identity_key(state.keys[message.client].identity))


def _verify_commitments(state: SecureRound, message: SealedShares) -> None:
    own, everybody = state.keys[message.client], make_roster(state)
    published: dict[ShareKind, str] = {"key": own.mask, "seed": own.commitment}
    proofs.require_shared(everybody.context, message, published, everybody.share_threshold)


def _verify_complaints(state: SecureRound, message: ShareCheck) -> None:
    if not message.complaints:
        return
    everybody = make_roster(state)
    for dealer, complaint in message.complaints.items():
        share = state.shares[dealer].deliver(message.client)
        evidence = ExpulsionEvidence(dealer=dealer, holder=message.client, share=share, complaint=complaint)
        proofs.require_valid_evidence(everybody, evidence)


def _verify_shares(state: SecureRound, message: UnmaskAnswer) -> None:
    """Checks that each share is the one that its dealer has committed to."""
    context = make_roster(state).context
    given: dict[ShareKind, Mapping[str, str]] = {"seed": message.seeds, "key": message.keys}
    for kind, shares in given.items():
        for dealer, share in shares.items():
            sent = state.shares[dealer]
            piece = sent.committed_to(message.client)
            proofs.require_committed(context, dealer, message.client, {kind: share}, piece, int(sent.challenge, 16))
