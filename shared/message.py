"""Base of all JSON messages and settings: immutable, without undeclared fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
