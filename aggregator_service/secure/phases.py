"""The phases within an open secure round: who is still expected, how many are needed, how long each phase may take.

Pure. A client trains before it sends its keys, so the first phase has most of the round's time: who trains too slowly
is left out before anybody shares a mask with it, and nothing has to be restored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shared.schemas import Declaration
from shared.secure import agreement, server
from shared.secure.fixed_point import MOST_CLIENTS
from shared.secure.messages import least_threshold
from shared.secure.server import Phase, SecureRound

PARTS: Mapping[Phase, float] = {"keys": 0.7, "shares": 0.1, "masked": 0.1, "answers": 0.1}
"""Of the round's deadline, each counted from its own beginning."""


def opened(declaration: Declaration, run: str, number: int, clients: int) -> SecureRound:
    """A round for so many clients, as many as the sum can hold at most."""
    threshold = least_threshold(min(clients, MOST_CLIENTS))
    return SecureRound(terms=agreement.terms(declaration, run, number, threshold))


def expected(state: SecureRound, enrolled: Collection[str]) -> tuple[str, ...]:
    """Whom the current phase still waits for, sorted."""
    if state.phase != "keys":
        return state.missing
    full = least_threshold(len(state.keys) + 1) > state.terms.threshold
    return () if full else tuple(sorted(set(enrolled) - state.keys.keys()))


def needed(state: SecureRound, quorum: int) -> int:
    """Messages without which the current phase cannot close. The quorum is one of updates: answers come after them."""
    return state.terms.threshold if state.phase == "answers" else max(state.terms.threshold, quorum)


def came(state: SecureRound) -> int:
    return len(state.collected(state.phase))


def shortage(state: SecureRound, enrolled: Collection[str], quorum: int) -> str:
    """Why a phase could not close, for the operator."""
    missing = ", ".join(expected(state, enrolled)) or "nobody"
    held = f"{came(state)} of {needed(state, quorum)} clients at the deadline of its phase {state.phase}"
    return f"round {state.terms.round}: {held}, missing {missing}"


def acts(state: SecureRound, client: str, enrolled: Collection[str]) -> bool:
    """Is this client still part of the round?"""
    return client in expected(state, enrolled) or client in state.collected(state.phase)


def next_phase(state: SecureRound) -> SecureRound:
    return server.close(state)
