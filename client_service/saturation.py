"""A run's figures -> whether its positives have stopped teaching, and what would change that, in words."""

from __future__ import annotations

from client_service.schemas import QualityOut

SATURATED = 0.25  # from this share of the positives on, the rest no longer makes up for them


def saturation_notices(quality: QualityOut) -> tuple[str, ...]:
    """One sentence, the same for the rest of the run, once the positives of a round have saturated; else none."""
    first = next((entry.round for entry in quality.rounds if entry.saturated >= SATURATED), None)
    if first is None:
        return ()
    return (
        f"in round {first} of {quality.run} a quarter or more of the positives lay at the angle pi, where the loss has"
        " no gradient: they teach nothing; expected a smaller margin_strength (gamma), or margin_reading = additive",
    )
