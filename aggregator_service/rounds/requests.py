"""What an operator asks of a run -> how many updates its rounds need; refused where they could never have them."""

from __future__ import annotations

from shared.errors import ProtocolError
from shared.protocol.schemas import RunIn
from shared.strategies.robust.choice import least_updates


def require_quorum(request: RunIn) -> None:
    """ProtocolError for a quorum of more than all clients, or of fewer updates than are needed to aggregate them."""
    if request.quorum is not None and request.quorum > request.clients:
        raise ProtocolError(f"quorum: expected at most clients = {request.clients}, got {request.quorum}")
    if (least := request.quorum or request.clients) < (needed := least_updates(request.method)):
        how = f"with aggregate = {request.method.aggregate}, tolerated = {request.method.tolerated}"
        raise ProtocolError(f"quorum: expected {needed} or more {how}, got {least}")


def needed_updates(request: RunIn, awaited: int) -> int:
    """Of a round: as many as the operator has said; else as many as clients, or as are still awaited if these are
    fewer, and enough to be aggregated."""
    return request.quorum or max(least_updates(request.method), min(request.clients, awaited))
