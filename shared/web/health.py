"""What a service answers to whoever looks after it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.message import Message

TrainerStanding = Literal["running", "starting"]


class LiveOut(Message):
    """The process runs as it should."""

    status: Literal["live"] = Field("live", description="always the same")


class ReadyOut(Message):
    """The service takes calls."""

    status: Literal["ready"] = Field("ready", description="always the same")
    model: Literal["none yet", "serving"] | None = Field(
        None, description="of a client: does a model answer?", examples=["serving"]
    )
    trainer: TrainerStanding | None = Field(
        None,
        description="of a client: the process beside it that trains and answers its operator",
        examples=["running"],
    )
