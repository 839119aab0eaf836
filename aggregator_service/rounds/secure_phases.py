"""The phases within an open secure round: who is still expected, how many are needed, how long each phase may take.

Pure. A client trains before it sends its keys, so the first phase has most of the round's time: who trains too slowly
is left out before anybody shares a mask with it, and nothing has to be restored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shared.protocol.secure import server
from shared.protocol.secure.messages import least_threshold
from shared.protocol.secure.server import Phase, SecureRound

PARTS: Mapping[Phase, float] = {
    "keys": 0.7,
    "shares": 0.05,
    "checks": 0.05,
    "masked": 0.1,
    "consents": 0.05,
    "answers": 0.05,
}
"""Of the round's deadline, each counted from its own beginning."""


def expected_clients(state: SecureRound, awaited: Collection[str]) -> tuple[str, ...]:
    """Whom the current phase still waits for, sorted. As many answers as the threshold are enough."""
    if state.phase == "answers" and count_messages(state) >= state.terms.threshold:
        return ()
    if state.phase != "keys":
        return state.missing
    full = least_threshold(len(state.keys) + 1) > state.terms.threshold
    return () if full else tuple(sorted(set(awaited) - state.keys.keys()))


def needed_messages(state: SecureRound, quorum: int) -> int:
    """Messages without which the current phase cannot close. The quorum is one of updates: what comes after them needs
    the threshold alone."""
    threshold = state.terms.threshold
    return threshold if state.phase in ("consents", "answers") else max(threshold, quorum)


def count_messages(state: SecureRound) -> int:
    return server.count_present(state)


def shortage_words(state: SecureRound, awaited: Collection[str], quorum: int) -> str:
    """Why a phase could not close, for the operator."""
    missing = ", ".join(expected_clients(state, awaited)) or "nobody"
    counts = f"{count_messages(state)} of {needed_messages(state, quorum)} clients"
    return f"round {state.terms.round}: {counts} at the deadline of its phase {state.phase}, missing {missing}"


def is_active(state: SecureRound, client: str, awaited: Collection[str]) -> bool:
    """Is this client still part of the round?"""
    return client in expected_clients(state, awaited) or client in state.collected(state.phase)


def next_phase(state: SecureRound) -> SecureRound:
    return server.close(state)
