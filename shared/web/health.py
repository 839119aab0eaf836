"""What a service tells whoever looks after it, or has started it; and how it ends with the latter."""

from __future__ import annotations

import os
import signal
import threading
from typing import Literal

from pydantic import Field

from shared.message import Message

READY_PIPE, READY_WORD = "LPSFED_READY_PIPE", b"ready"
"""A variable with the number of a pipe's end, which whoever started the service has opened; and the word for it."""
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


TETHERED = "--tethered"  # a word of a service's command line: it ends with the process that has started it


def end_with_parent() -> None:
    """Stop as by SIGTERM once the process that started this one is gone: it holds the other end of standard input.

    A byte that comes there lets this process go on without the other.
    """

    def wait() -> None:
        if not os.read(0, 1):
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="tether", daemon=True).start()
