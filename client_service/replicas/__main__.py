"""Environment and arguments -> a process that answers applications at the serving port, and nothing else:
`python -m client_service.replicas [settings.toml]`, with the settings of the client whose model it serves.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from client_service.app import create_replica
from client_service.replicas.service import Replica
from client_service.runtime.logs import LOGGER
from client_service.settings import ClientSettings, client_settings
from shared.errors import FederationError, SettingsError
from shared.files import write_privately
from shared.web.logs import configure
from shared.web.server import TETHERED, end_with_parent, run_server

BAD_SETTINGS = 2


async def _serve(settings: ClientSettings) -> None:
    app = create_replica(settings)
    LOGGER.info("starting_replica", client=settings.name, host=settings.host, port=settings.port)
    service: Replica = app.state.service
    await run_server(
        app,
        settings,
        identities=app.state.identities,
        wind_down=lambda: None,
        hindrance=lambda: service.hindrance,
        logger=LOGGER,
        shared_port=True,
    )


def main() -> int:
    arguments = [one for one in sys.argv[1:] if one != TETHERED]
    try:
        settings = client_settings(Path(arguments[0]) if arguments else None).for_replica()
        configure("client_service", settings.log_level)
        if TETHERED in sys.argv[1:]:
            end_with_parent()
            settings = settings.model_copy(update={"ready_file": None})  # the training process's own
        with write_privately():
            anyio.run(_serve, settings)
    except FederationError as error:
        sys.stderr.write(f"client: {error}\n")
        return BAD_SETTINGS if isinstance(error, SettingsError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
