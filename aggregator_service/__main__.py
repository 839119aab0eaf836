"""Start of the aggregator from the environment: `python -m aggregator_service`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Coroutine
from multiprocessing.synchronize import Event

from shared.memory import pause_collections

with pause_collections():
    import anyio

    from aggregator_service.app import create_app
    from aggregator_service.coordinator import Coordinator
    from aggregator_service.process import LOGGER, limit_math_threads, return_freed_memory
    from aggregator_service.settings import AggregatorSettings, aggregator_settings
    from aggregator_service.worker_processes import WorkerProcesses, open_port
    from shared.errors import FederationError, SettingsError
    from shared.files import remove_public_access, use_private_umask
    from shared.web.health import ENDS_WITH_PARENT, end_with_parent
    from shared.web.logs import configure_logging
    from shared.web.server import START_CHECK_SECONDS, run_server

BAD_SETTINGS = 2


def serve(settings: AggregatorSettings, ready: Event | None = None) -> None:
    """Runs the aggregator until SIGINT or SIGTERM.

    ready: is set once a worker of several serves. Raises SettingsError if the state directory cannot be used.
    """
    configure_logging("aggregator_service", settings.log_level)
    return_freed_memory()
    limit_math_threads()
    with use_private_umask():
        folder = settings.state_directory
        if (left := remove_public_access(folder)) is not None:
            what = f"state_directory: expected files for this user alone, others may read {left}: chmod 700 {folder}"
            LOGGER.warning("caution", what=f"{what}, by its owner")
        if settings.workers > 1:
            here = importlib.import_module("aggregator_service.__main__")  # the workers find no function of __main__
            WorkerProcesses(settings, here.serve).run()
        else:
            anyio.run(_serve, settings, ready)


async def _serve(settings: AggregatorSettings, ready: Event | None) -> None:
    app = create_app(settings)
    LOGGER.info("starting", host=settings.host, port=settings.port, state=str(settings.state_directory))
    coordinator: Coordinator = app.state.coordinator
    await run_server(
        app,
        settings,
        identities=app.state.identities,
        on_shutdown=coordinator.wind_down,
        unready_reason=lambda: coordinator.unready_reason,
        logger=LOGGER,
        listen=None if ready is None else open_port,
        background=[] if ready is None else _worker_jobs(coordinator, ready),
    )


def _worker_jobs(coordinator: Coordinator, ready: Event) -> list[Coroutine[None, None, None]]:
    """Lists the endless jobs of one of several workers at one port."""
    shared = coordinator.metrics.share(coordinator.settings.state_directory)
    return [_announce_ready(coordinator, ready), shared.keep_written()]


async def _announce_ready(coordinator: Coordinator, ready: Event) -> None:
    while coordinator.unready_reason is not None:
        await anyio.sleep(START_CHECK_SECONDS)
    ready.set()


def main() -> int:
    if ENDS_WITH_PARENT in sys.argv[1:]:
        end_with_parent()
    try:
        serve(aggregator_settings())
    except FederationError as error:
        sys.stderr.write(f"aggregator: {error}\n")
        return BAD_SETTINGS if isinstance(error, SettingsError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
