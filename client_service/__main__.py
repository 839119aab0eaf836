"""Environment and arguments -> a running client: `python -m client_service [settings.toml]`."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio

from client_service.app import create_app
from client_service.http.service import ClientService
from client_service.replicas.processes import keep_replicas
from client_service.runtime.logs import LOGGER
from client_service.settings import ClientSettings, client_settings
from shared.errors import FederationError, SettingsError
from shared.files import close_to_others, write_privately
from shared.web.logs import configure
from shared.web.server import TETHERED, end_with_parent, run_server

BAD_SETTINGS = 2
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


def main() -> int:
    arguments = [word for word in sys.argv[1:] if word != TETHERED]
    if TETHERED in sys.argv[1:]:
        end_with_parent()
    try:
        serve(client_settings(Path(arguments[0]) if arguments else None))
    except FederationError as error:
        sys.stderr.write(f"client: {error}\n")
        return BAD_SETTINGS if isinstance(error, SettingsError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
