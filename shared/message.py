"""What every JSON message and every settings model has in common: it is immutable and has no undeclared field."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
