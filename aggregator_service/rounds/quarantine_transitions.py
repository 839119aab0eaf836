"""A run and a client to shut out or to let in -> the next state of the run. Pure, as `rounds` is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aggregator_service.rounds import transitions
from aggregator_service.rounds.run import Run
from shared.protocol.schemas import Cause


def shut_out(run: Run, causes: Mapping[str, Cause], *, now: float) -> Run:
    """From now on nobody waits for these clients, and what they sent in a round that is not aggregated is not used.

    So a round may close, or find that it cannot have its quorum any more: then the run fails. A masked vector stays in
    its secure round, where the others' vectors hold its masks; its client is out of the next round.
    """
    after = replace(run, quarantined={**run.quarantined, **causes})
    if not run.active:
        return after
    if run.exchange is None:
        kept = {client: receipt for client, receipt in run.receipts.items() if client not in causes}
        after = replace(after, receipts=kept)
        if run.phase == "aggregated":  # closed, and nothing computed from it yet: does it still hold?
            after = replace(after, phase="open", closed_at=None)
    return transitions.advance(after, now)


def let_in(run: Run, client: str, *, now: float) -> Run:
    """Wait for this client again, from the current round on. What it had sent in it is not used: it may send again."""
    kept = {name: cause for name, cause in run.quarantined.items() if name != client}
    return transitions.advance(replace(run, quarantined=kept, readmitted=run.readmitted | {client}), now)
