"""Reports a service's health, and ends the service with its parent process.

The reports go to operators and to the parent process.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Literal

from pydantic import Field

from shared.message import Message

READY_PIPE, READY_WORD = "LPSFED_READY_PIPE", b"ready"
"""READY_PIPE: an environment variable with the descriptor of a pipe that the parent process has opened. READY_WORD: the
word that a ready service writes there."""
TrainerStatus = Literal["running", "starting"]


class LiveOut(Message):
    """Answer of /health/live: the process runs."""

    status: Literal["live"] = Field("live", description="always live")


class ReadyOut(Message):
    """Answer of /health/ready: the service takes calls."""

    status: Literal["ready"] = Field("ready", description="always ready")
    model: Literal["none yet", "serving"] | None = Field(
        None, description="of a client: whether a model answers requests", examples=["serving"]
    )
    trainer: TrainerStatus | None = Field(
        None,
        description="of a client: state of its trainer process, which trains and answers the operator",
        examples=["running"],
    )


ENDS_WITH_PARENT = "--tethered"  # argument of a service's command line: the service ends with its parent process


def end_with_parent() -> None:
    """Stops this process as by SIGTERM once its parent process is gone.

    The parent holds the other end of standard input. A byte that comes there lets this process go on without its
    parent.
    """

    def wait() -> None:
        if not os.read(0, 1):
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="tether", daemon=True).start()
