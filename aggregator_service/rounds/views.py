"""A run -> what one client is told of it."""

from __future__ import annotations

from aggregator_service.rounds import secure_phases
from aggregator_service.rounds.run import Run
from shared.protocol.schemas import RunOut, Standing


def view(run: Run, client: str, *, sequence: int, now: float) -> RunOut:
    """The run as one client may see it: its own standing, and of the others only how many."""
    return RunOut(
        sequence=sequence,
        run=run.name,
        phase=run.phase,
        round=run.round,
        rounds=run.request.rounds,
        seed=run.request.seed,
        seconds_left=max(0.0, run.deadline - now) if run.phase in ("waiting", "open") else None,
        deadline_seconds=run.request.deadline_seconds,
        standing=_standing(run, client),
        joined=len(run.clients),
        received=len(run.receipts),
        threshold=run.exchange.terms.threshold if run.exchange else None,
        changing_members=run.request.changing_members,
        method=run.request.method,
    )


def _standing(run: Run, client: str) -> Standing:
    if client in run.quarantined:
        return "quarantined"
    if run.exchange is not None and run.phase == "open":
        if client in run.exchange.answers:
            return "received"
        return "expected" if secure_phases.acts(run.exchange, client, run.awaited) else "absent"
    if client in run.receipts:
        return "received"
    return "expected" if run.active and client in run.clients else "absent"
