"""Starts a client: `python -m client_service [--server | --trainer] [settings.toml]`.

Without an option a server starts at the silo's port, and starts a trainer beside itself. `--server`: a server without a
trainer, for example in another container. `--trainer`: a trainer whose server is another process.

The process reads and checks the settings, then replaces itself by the server: the code that checks settings takes more
memory than the code that answers. This module imports only the modules of a server.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from client_service.runtime.trainer_process import (
    BAD_SETTINGS,
    FAILED,
    HANDOVER_FILE,
    REFUSAL,
    SERVER,
    SETTINGS_FILE,
    TRAINER,
    TRAINER_FILE,
    WAITING,
    client_command,
    end_at_once_with_parent,
    keep_settings,
    lower_priority,
    read_kept_settings,
    refusal_code,
    send_refusal,
    unblock_stop_signals,
)
from shared.errors import FederationError, SettingsError
from shared.memory import pause_collections
from shared.web.health import ENDS_WITH_PARENT, end_with_parent

if TYPE_CHECKING:
    from client_service.http.server import ServerSettings
    from client_service.settings import ClientSettings


def serve(settings: ClientSettings, *, trains: bool = True, words: tuple[str, ...] = ()) -> NoReturn:
    """Replaces this process by a server with these settings.

    trains: the server starts a trainer beside itself. words: further words of the server's command line.
    """
    kept = keep_settings(server_settings(settings, trains=trains))
    trainer = (f"{TRAINER_FILE}{keep_settings(settings)}",) if trains else ()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.execv(sys.executable, client_command(SERVER, f"{SETTINGS_FILE}{kept}", *trainer, *words))


def server_settings(settings: ClientSettings, *, trains: bool = True) -> ServerSettings:
    """Selects the settings that a server needs of a client's.

    trains: a trainer runs beside the server.
    """
    from client_service.http.server import ServerSettings

    given = dict(settings)
    named = {name: given[name] for name in ServerSettings.model_fields if name in given}
    keys = {name: settings.key(name) for name in ("application_key", "operator_key")}
    derived = {
        "start_warnings": settings.list_warnings(),
        "shares_port": settings.workers > 1 or not trains,
        "has_trainer": trains,
    }
    return ServerSettings(**{**named, **keys, **derived})


def find_descriptor(words: list[str], name: str) -> int | None:
    """Finds the descriptor behind the option `name`, such as `--settings-descriptor=`; None: it is absent."""
    return next((int(word.removeprefix(name)) for word in words if word.startswith(name)), None)


def main() -> int:
    words = sys.argv[1:]
    kept, trainer = find_descriptor(words, SETTINGS_FILE), find_descriptor(words, TRAINER_FILE)
    files = [Path(word) for word in words if not word.startswith("--")]
    tether = [word for word in words if word == ENDS_WITH_PARENT]
    handover_file = find_descriptor(words, HANDOVER_FILE)
    if handover_file is not None:
        unblock_stop_signals()
    elif TRAINER in words:
        lower_priority()
    try:
        if kept is not None and TRAINER not in words:
            with pause_collections():
                from client_service.http.server_app import serve_kept_settings

            def follow_parent() -> None:
                if tether:
                    end_with_parent() if trainer is not None else end_at_once_with_parent()

            return serve_kept_settings(kept, trainer, follow_parent)
        with pause_collections():
            from client_service.settings import client_settings

        if TRAINER in words:
            if tether:
                end_at_once_with_parent()
            given = {} if kept is None else read_kept_settings(kept)
            return _train(client_settings(files[0] if files else None, **given), words)
        serve(client_settings(files[0] if files else None), trains=SERVER not in words, words=tuple(tether))
    except FederationError as error:
        if not send_refusal(find_descriptor(words, REFUSAL), error):
            sys.stderr.write(f"client: {error}\n")
        if TRAINER in words and kept is not None:
            return refusal_code(error)
        return BAD_SETTINGS if isinstance(error, SettingsError) else FAILED


def _train(settings: ClientSettings, words: list[str]) -> int:
    """Runs a trainer, or one that waits, and returns its exit code."""
    kept, handover_file = find_descriptor(words, SETTINGS_FILE), find_descriptor(words, HANDOVER_FILE)
    if (refusal := find_descriptor(words, REFUSAL)) is not None:
        os.set_inheritable(refusal, False)  # only a first image tells its parent why it cannot start
    if handover_file is None:
        with pause_collections():
            from client_service.app import serve_trainer

        server = None if kept is None else os.getppid()
        return serve_trainer(settings, keep_settings(settings) if kept is None else kept, server)
    with pause_collections():
        from client_service.http.waiting_trainer import Handover, serve_waiting

    handover = Handover(**read_kept_settings(handover_file))
    os.close(handover_file)
    handover.kept.set_inheritable(False)
    if WAITING in words:
        return serve_waiting(settings, handover)
    with pause_collections():
        from client_service.app import serve_trainer

    return serve_trainer(settings, handover.kept.settings, handover.server, handover)


if __name__ == "__main__":
    sys.exit(main())
