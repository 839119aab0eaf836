"""Environment -> a running aggregator: `python -m aggregator_service`."""

from __future__ import annotations

import signal
import socket
import sys
from types import FrameType

import anyio
import uvicorn

from aggregator_service.app import create_app
from aggregator_service.coordinator import Coordinator
from aggregator_service.logs import LOGGER, configure
from aggregator_service.settings import AggregatorSettings, aggregator_settings
from shared.errors import FederationError, SettingsError

GRACE_SECONDS = 5  # for uploads under way; long polls are woken and need none
BAD_SETTINGS = 2


class _Server(uvicorn.Server):
    """Wakes the long polls before it waits for open connections."""

    def __init__(self, config: uvicorn.Config, coordinator: Coordinator) -> None:
        super().__init__(config)
        self._coordinator = coordinator

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn's own raises the signal again after serving, which would cut off the coordinator's own end."""
        del frame
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._coordinator.wind_down()
        await super().shutdown(sockets)


def serve(settings: AggregatorSettings) -> None:
    """Run until SIGINT or SIGTERM. SettingsError if the state directory is of no use."""
    configure(settings.log_level)
    anyio.run(_serve, settings)


async def _serve(settings: AggregatorSettings) -> None:
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        lifespan="off",  # entered here, so that a SettingsError reaches the caller as what it is
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    async with app.router.lifespan_context(app):
        LOGGER.info("serving", host=settings.host, port=settings.port, state=str(settings.state_directory))
        await _Server(config, app.state.coordinator).serve()


def main() -> int:
    try:
        serve(aggregator_settings())
    except FederationError as error:
        sys.stderr.write(f"aggregator: {error}\n")
        return BAD_SETTINGS if isinstance(error, SettingsError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
