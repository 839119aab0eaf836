"""Starts a client, or a serving process: `python -m client_service [--replica] [settings.toml]`.

A replica has the settings of the client whose model it serves, and answers applications at the serving port.
"""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from client_service.app import create_app, create_replica
from client_service.http.replica import Replica
from client_service.http.service import ClientService
from client_service.runtime.logs import LOGGER
from client_service.runtime.replica_processes import keep_replicas
from client_service.settings import ClientSettings, client_settings
from shared.errors import FederationError, SettingsError
from shared.files import close_to_others, write_privately
from shared.web.logs import configure
from shared.web.server import TETHERED, end_with_parent, run_server

BAD_SETTINGS = 2
REPLICA = "--replica"
SWITCH_SECONDS = 0.0005  # how long training may keep the interpreter from a request; the default is ten times it


def serve(settings: ClientSettings) -> None:
    """Run until SIGINT or SIGTERM. DataError or SettingsError when shard or state directory are of no use."""
    configure("client_service", settings.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    with write_privately():
        _close_to_others(settings)
        anyio.run(_serve, settings)


def _close_to_others(settings: ClientSettings) -> None:
    """Shard and state may be older, or somebody else's."""
    for name, folder in (("shard", settings.shard), ("state_directory", settings.state_directory)):
        if (left := close_to_others(folder)) is not None:
            what = (
                f"{name}: expected files for this user alone, others may read {left}: chmod 700 {folder}, by its owner"
            )
            LOGGER.warning("caution", what=what)


async def _serve(settings: ClientSettings) -> None:
    app = create_app(settings)
    LOGGER.info("starting", client=settings.name, host=settings.host, port=settings.port)
    service: ClientService = app.state.service
    async with keep_replicas(settings.workers, [word for word in sys.argv[1:] if word != TETHERED]):
        await run_server(
            app,
            settings,
            identities=app.state.identities,
            wind_down=lambda: None,
            hindrance=lambda: service.hindrance,
            logger=LOGGER,
        )


def serve_replica(settings: ClientSettings, *, tethered: bool) -> None:
    """Answer applications at the serving port, and nothing else. `tethered`: beside a process that trains."""
    settings = settings.for_replica()
    configure("client_service", settings.log_level)
    if tethered:
        settings = settings.model_copy(update={"ready_file": None})  # the training process's own
    with write_privately():
        anyio.run(_serve_replica, settings)


async def _serve_replica(settings: ClientSettings) -> None:
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
    arguments = [word for word in sys.argv[1:] if word not in (TETHERED, REPLICA)]
    tethered, replica = TETHERED in sys.argv[1:], REPLICA in sys.argv[1:]
    if tethered:
        end_with_parent()
    try:
        settings = client_settings(Path(arguments[0]) if arguments else None)
        if replica:
            serve_replica(settings, tethered=tethered)
        else:
            serve(settings)
    except FederationError as error:
        sys.stderr.write(f"client: {error}\n")
        return BAD_SETTINGS if isinstance(error, SettingsError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
