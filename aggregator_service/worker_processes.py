"""Worker processes of one aggregator, at one port, with one database.

This process serves nothing: it holds the port and the state directory, starts each worker again that ends, and ends
them all with itself.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event

from aggregator_service.process import LOGGER
from aggregator_service.rounds.worker_metrics import forget_workers
from aggregator_service.settings import AggregatorSettings
from shared.errors import FederationError, SettingsError
from shared.files import lock_directory
from shared.protocol.signing.enrolment import ensure_key_pair
from shared.timeouts import GRACE_SECONDS
from shared.web.health import READY_PIPE, READY_WORD
from shared.web.listening import ListenSettings
from shared.web.logs import configure_logging
from shared.web.server import open_shared_socket

OWN = "aggregator"
RESTART_SECONDS = 1.0  # pause before a worker that has ended is started again
REFUSED = 2  # exit status of a worker that cannot start with its settings
LOOK_SECONDS = 0.2

Serve = Callable[[AggregatorSettings, Event], None]
SPAWN = multiprocessing.get_context("spawn")


class WorkerProcesses:
    """Worker processes of one federation; `serve` runs one of them."""

    def __init__(self, settings: AggregatorSettings, serve: Serve) -> None:
        self._settings, self._serve = settings, serve
        self._ending = threading.Event()
        self._ready = [SPAWN.Event() for _ in range(settings.workers)]
        self._running: list[SpawnProcess] = []

    def run(self) -> None:
        """Runs the workers until SIGINT or SIGTERM; raises SettingsError if they cannot start."""
        settings = self._settings
        settings.state_directory.mkdir(parents=True, exist_ok=True)
        notice = os.environ.pop(READY_PIPE, "")
        with closing(lock_directory(settings.state_directory)), closing(open_shared_socket(settings)) as held:
            port = held.getsockname()[1]
            forget_workers(settings.state_directory)
            for kind in (signal.SIGINT, signal.SIGTERM):
                signal.signal(kind, lambda *_: self._ending.set())
            self._running = [self._start(number, port) for number in range(settings.workers)]
            try:
                self._watch(port, notice)
            finally:
                self._end()

    def _watch(self, port: int, notice: str) -> None:
        while not self._ending.wait(LOOK_SECONDS):
            if notice and all(one.is_set() for one in self._ready):
                os.write(int(notice), READY_WORD)
                os.close(int(notice))
                notice = ""
            for number, process in enumerate(self._running):
                if process.is_alive():
                    continue
                if process.exitcode == REFUSED and not self._ready[number].is_set():
                    raise SettingsError("workers: a worker could not start, as its message above says")
                LOGGER.warning("worker_ended", worker=number, status=process.exitcode)
                if not self._ending.wait(RESTART_SECONDS):
                    self._running[number] = self._start(number, port)

    def _start(self, number: int, port: int) -> SpawnProcess:
        one = worker_settings(self._settings, number, port)
        process = SPAWN.Process(target=_run_worker, args=(self._serve, one, self._ready[number]))
        process.start()
        return process

    def _end(self) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.join(2 * GRACE_SECONDS)
            process.kill()
            process.join()


def worker_settings(settings: AggregatorSettings, number: int, port: int) -> AggregatorSettings:
    """Returns a worker's settings, with its own state directory and part of the port's limits."""
    folder = settings.state_directory
    key = settings.signing_key_file or ensure_key_pair(OWN, folder).private
    own = {"state_directory": folder / f"worker-{number}", "port": port, "workers": 1, "shared": True}
    common = {"keys_directory": settings.registry, "signing_key_file": key}
    limits = share_limits(settings, settings.workers)
    blobs = settings.blobs or str((folder / "blobs").absolute())
    return settings.model_copy(update={**own, **common, **limits, "blobs": blobs})


def share_limits(settings: ListenSettings, workers: int) -> dict[str, float | None]:
    """Divides the limits of a port among its workers, to which the system deals connections.

    Together they take no more than one process would, and a caller with one connection gets its share.
    """
    kept = settings.kept_connections
    return {
        "requests_per_second": settings.rate_limit / workers,
        "most_connections": math.ceil(settings.most_connections / workers),
        "most_connections_of_address": math.ceil(settings.most_connections_of_address / workers),
        "kept_connections": None if kept is None else kept // workers,
    }


def open_port(settings: ListenSettings) -> list[socket.socket]:
    """Opens a worker's socket at the port that all workers share."""
    return [open_shared_socket(settings)]


def _run_worker(serve: Serve, settings: AggregatorSettings, ready: Event) -> None:
    threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()
    try:
        serve(settings, ready)
    except FederationError as error:
        configure_logging("aggregator_service", settings.log_level)
        LOGGER.error("worker_refused", reason=str(error))
        raise SystemExit(REFUSED if isinstance(error, SettingsError) else 1) from None


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
