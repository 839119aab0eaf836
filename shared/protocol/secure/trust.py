"""A roster -> accepted by a client, or refused: what it must be before anything is shared with those who are in it."""

from __future__ import annotations

from collections.abc import Mapping

from shared.errors import PrivacyError, ProtocolError
from shared.protocol.secure.common import describe_terms, describe_unlike_lists, find_differences
from shared.protocol.secure.identities import require_signature
from shared.protocol.secure.messages import CommonTerms, Roster, least_threshold, possession_label
from shared.protocol.secure.proofs import require_possession
from shared.protocol.secure.state import BegunRound
from shared.protocol.signing.keys import PublicKey, raw_hex

Members = Mapping[str, PublicKey]
"""The clients that a silo knows, and the key of each."""


def require_fair(state: BegunRound, roster: Roster) -> None:
    """PrivacyError for a roster on other terms than the round began with, without this client's own keys, or with too
    few clients or too low a threshold to hide anybody."""
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
    """PrivacyError unless each key is signed by a known client that has its secret, was told the same and counts over
    the same list of items."""
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
        raise PrivacyError(f"expected {who} to have what this client was told, got another {', '.join(differing)}")
