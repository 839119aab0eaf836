"""Starts a client: `python -m client_service [--server | --trainer] [settings.toml]`.

Without a word a server starts, which has the silo's port and starts the trainer beside itself. `--server`: one without
a trainer, for example in another container; `--trainer`: a trainer whose server is another process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import anyio

from client_service.app import create_app, create_server
from client_service.http.server import Server
from client_service.http.service import ClientService
from client_service.runtime.logs import LOGGER
from client_service.runtime.trainer_process import (
    BAD_SETTINGS,
    FAILED,
    NICENESS,
    SERVER,
    SETTINGS_FILE,
    TRAINER,
    choose_socket,
    end_at_once_with_parent,
    keep_settings,
    make_trainer,
    make_workers,
    read_kept_settings,
    refusal_code,
)
from client_service.settings import ClientSettings, client_settings
from shared.errors import FederationError, SettingsError
from shared.files import close_to_others, write_privately
from shared.web.logs import configure
from shared.web.server import TETHERED, end_with_parent, listen_privately, run_server, share_port

LOOK_SECONDS = 1.0  # between two looks at whether the agent still follows
SWITCH_SECONDS = 0.0005  # how long training may keep the interpreter from a request; the default is ten times it


def serve(settings: ClientSettings, *, trains: bool = True) -> int:
    """Answer at the silo's port until SIGINT or SIGTERM, with a trainer beside it or without. The exit code.

    DataError or SettingsError when shard or state directory are of no use.
    """
    configure("client_service", settings.log_level)
    with write_privately():
        _close_to_others(settings)
        return anyio.run(_serve, settings, trains)


async def _serve(settings: ClientSettings, trains: bool) -> int:
    kept = keep_settings(settings)
    trainer = make_trainer(kept) if trains else None
    workers = make_workers(settings.workers - 1 if trains else 0, kept)
    children = [*workers, *(() if trainer is None else (trainer,))]
    app = create_server(settings, trainer)
    service: Server = app.state.service

    def wind_down() -> None:
        for child in children:
            child.end()

    def starting() -> str | None:
        """Whoever has started this process hears that it is ready once a first trainer is: of mistakes that keep it
        from that its exit code tells."""
        return "the trainer is being started" if trainer is not None and not trainer.has_started else None

    LOGGER.info("starting", client=settings.name, host=settings.host, port=settings.port)
    await run_server(
        app,
        settings,
        identities=app.state.identities,
        wind_down=wind_down,
        hindrance=lambda: service.hindrance,
        starting=starting,
        logger=LOGGER,
        listen=share_port if settings.workers > 1 or not trains else None,
        beside=[child.keep() for child in children],
    )
    return 0 if trainer is None or trainer.refused is None else trainer.refused


def serve_trainer(settings: ClientSettings, server: int | None = None) -> int:
    """Train, and answer the server at the socket of the state directory, until SIGINT or SIGTERM, or until only a
    restart helps. server: the process that has started this one. The exit code."""
    configure("client_service", settings.log_level)
    sys.setswitchinterval(SWITCH_SECONDS)
    with write_privately():
        _close_to_others(settings)
        return anyio.run(_serve_trainer, settings, server)


async def _serve_trainer(settings: ClientSettings, server: int | None) -> int:
    settings = settings.model_copy(update={"ready_file": None})  # the server's
    app = create_app(settings, behind_server=True)
    LOGGER.info("starting_trainer", client=settings.name)
    service: ClientService = app.state.service
    service.server_process = server
    failed = False

    async def end_with_agent() -> None:
        nonlocal failed
        while service.live:
            await asyncio.sleep(LOOK_SECONDS)
        failed = True
        os.kill(os.getpid(), signal.SIGTERM)

    await run_server(
        app,
        settings,
        identities=app.state.identities,
        wind_down=lambda: None,
        hindrance=lambda: service.hindrance,
        logger=LOGGER,
        listen=lambda _: listen_privately(choose_socket(settings.state_directory)),
        beside=[end_with_agent()],
        cautions=False,  # the server tells them
    )
    return FAILED if failed else 0


def _close_to_others(settings: ClientSettings) -> None:
    """Shard and state may be older, or somebody else's."""
    for name, folder in (("shard", settings.shard), ("state_directory", settings.state_directory)):
        if (left := close_to_others(folder)) is not None:
            what = (
                f"{name}: expected files for this user alone, others may read {left}: chmod 700 {folder}, by its owner"
            )
            LOGGER.warning("caution", what=what)


def main() -> int:
    words = sys.argv[1:]
    kept = [int(word.removeprefix(SETTINGS_FILE)) for word in words if word.startswith(SETTINGS_FILE)]
    files = [
        Path(word) for word in words if word not in (TETHERED, TRAINER, SERVER) and not word.startswith(SETTINGS_FILE)
    ]
    if TRAINER in words:
        os.nice(NICENESS)
    if TETHERED in words:
        end_at_once_with_parent() if kept else end_with_parent()
    try:
        settings = (
            client_settings(**read_kept_settings(kept[0])) if kept else client_settings(files[0] if files else None)
        )
        if TRAINER in words:
            return serve_trainer(settings, os.getppid() if kept else None)
        return serve(settings, trains=SERVER not in words)
    except FederationError as error:
        sys.stderr.write(f"client: {error}\n")
        if TRAINER in words and kept:
            return refusal_code(error)
        return BAD_SETTINGS if isinstance(error, SettingsError) else FAILED


if __name__ == "__main__":
    sys.exit(main())
