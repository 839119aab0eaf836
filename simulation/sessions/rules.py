"""How clicks become sessions, and which of them are kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from shared.message import Message
from shared.method.settings import validate_settings


class SessionRules(Message):
    """`lpsfed partition --rule key=value`."""

    gap_seconds: float = Field(1800.0, gt=0, le=1e9, description="a longer pause between two clicks ends a session")
    shortest: int = Field(2, ge=2, le=200, description="clicks of a session at least")
    longest: int = Field(20, ge=2, le=200, validate_default=True, description="clicks of a session at most")
    support: int = Field(1, ge=1, le=1_000_000, description="training clicks that an item needs, else it is left out")

    @field_validator("longest")
    @classmethod
    def _not_below_the_shortest(cls, longest: int, info: ValidationInfo) -> int:
        if longest < (shortest := info.data.get("shortest", 2)):
            raise ValueError(f"expected shortest = {shortest} or more")
        return longest


USUAL_RULES = SessionRules()


def parse_rules(changes: Mapping[str, Any]) -> SessionRules:
    """SettingsError naming each rule that is unknown or out of range."""
    return validate_settings(SessionRules, dict(changes))
