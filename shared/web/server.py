"""An app -> a process that serves it until it is told to stop."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn
from fastapi import FastAPI

GRACE_SECONDS = 5  # for requests under way; long polls are woken and need none


class _Server(uvicorn.Server):
    """Calls `wind_down` before it waits for open connections, so that long polls end by themselves."""

    def __init__(self, config: uvicorn.Config, wind_down: Callable[[], None]) -> None:
        super().__init__(config)
        self._wind_down = wind_down

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn's own raises the signal again after serving, which would cut off the lifespan's own end."""
        del frame
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._wind_down()
        await super().shutdown(sockets)


async def run_server(
    app: FastAPI, *, host: str, port: int, wind_down: Callable[[], None], logger: structlog.stdlib.BoundLogger
) -> None:
    """Serve until SIGINT or SIGTERM, inside the app's lifespan. Its errors reach the caller as they are.

    A signal is heeded from before the lifespan begins until it has ended: the first process of a container would
    not even die of one that nobody handles.
    """

    def stopping() -> None:
        logger.info("stopping")
        wind_down()

    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config, stopping)
    with server.capture_signals():
        async with app.router.lifespan_context(app):
            await server.serve()
    logger.info("stopped")
