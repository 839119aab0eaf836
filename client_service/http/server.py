"""Answers applications in a process of its own, and stores their events.

Answers come from the files that the trainer publishes on the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr

from client_service.compiled.arrays import release_pages
from client_service.compiled.publication import SERVING, Publication, read_publication
from client_service.event_log.registry import EVENT_LOGS
from client_service.event_log.service import SiloLog
from client_service.http.answer_service import AnswerService
from client_service.http.authentication import CallerKeys
from client_service.http.trainer_proxy import TrainerProxy
from client_service.metrics import RequestMetrics, join_metrics
from client_service.runtime.logs import LOGGER
from client_service.runtime.memory import mapped_memory, return_free_memory
from client_service.runtime.trainer_process import ChildProcess, find_socket
from client_service.serving.model_server import ModelServer
from client_service.serving.next_items import open_next_items
from client_service.serving.node_labels import open_node_labels
from client_service.serving.recommender import open_recommender
from shared.errors import DataError, UnavailableError
from shared.web.health import TrainerStatus
from shared.web.listening import ListenSettings
from shared.web.server import run_background_jobs

LOG_CHECK_SECONDS = 0.5  # between two checks of the publication and of the log of events
MOST_MAPPED = 32 << 20  # bytes of mapped files in memory after a check, of which libraries take some 24 MB
MOST_FAILED_READS = 30  # failed reads of the log in a row, after which this server is not ready
UNREADABLE_FILES = (
    "expected compiled files that this version reads, got others or damaged ones: try again once the trainer has"
    " compiled them anew; the log names the folder"
)
METRICS_SECONDS = 5.0  # limit on fetching the trainer's series
ALIVE_SECONDS = 30.0  # between two liveness checks of the trainer, and the limit of each
MOST_FAILED_CHECKS = 10  # failed checks in a row, after which the trainer is killed and another one started


class ServerSettings(ListenSettings):
    """Checked settings that a server needs of a client's.

    start_warnings: warnings for the log at the start. shares_port: other processes listen at the port as well.
    has_trainer: a trainer runs beside the server, its own or that of another server at the port.
    """

    name: str
    task: str
    shard: Path
    state_directory: Path
    application_key: SecretStr | None = None
    operator_key: SecretStr | None = None
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    workers: int = 1
    shares_port: bool = False
    has_trainer: bool = False
    least_rating: float | None = None
    most_interactions: int
    most_item_bytes: int
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    start_warnings: tuple[str, ...] = ()

    def key(self, name: str) -> str | None:
        """Returns the secret of a key, application_key or operator_key; None: it is not set."""
        found: SecretStr | None = getattr(self, name)
        return None if found is None else found.get_secret_value()

    def list_warnings(self) -> list[str]:
        """Lists warnings that the operator should read before others call."""
        return list(self.start_warnings)


OPEN_ANSWERS: dict[str, Callable[[Path, Publication, ServerSettings], ModelServer]] = {
    "items": lambda serving, published, settings: open_recommender(serving, published, settings.least_rating),
    "sessions": lambda serving, published, _: open_next_items(serving, published),
    "nodes": lambda serving, published, _: open_node_labels(serving, published),
}
"""By task: opens what answers from the folder of published files. DataError for a damaged folder."""


class Server(AnswerService):
    """Answers from the trainer's last publication, and writes the log of events.

    The server calls no other machine. trainer: the process that the server has started beside itself; None: the server
    only answers.
    """

    def __init__(self, settings: ServerSettings, trainer: ChildProcess | None = None) -> None:
        super().__init__(settings.task)
        self.settings, self.metrics = settings, RequestMetrics()
        self.trainer = trainer
        self.proxy = TrainerProxy(
            settings.state_directory, CallerKeys.from_settings(settings), self._is_trainer_starting
        )
        self._serving = settings.state_directory / SERVING
        self._published: Publication | None = None
        self._unreadable = ""  # the last error of an unreadable publication, which is logged once
        self._failed_reads = 0  # of the log, in a row

    def _is_trainer_starting(self) -> bool:
        """Tells whether the trainer is away and being started.

        True for the trainer of another server, whose state is not known here.
        """
        return self.trainer is None or not self.trainer.is_ready

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs the jobs of the server while the body runs.

        Raises SettingsError if settings and shard state different smallest positive ratings.
        """
        await asyncio.to_thread(self._load_publication)
        return_free_memory(frozen=True)  # before the first request: imported objects live as long as the process
        self._following = asyncio.create_task(self._follow())
        try:
            async with run_background_jobs(
                *(() if self.trainer is None else (self._kill_silent_trainer(self.trainer),))
            ):
                yield
        finally:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
            if self._answers is not None:
                self._answers.close()
            if self._feedback is not None:
                self._feedback.close()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOG_CHECK_SECONDS)
            await asyncio.to_thread(self._load_publication)
            if mapped_memory() > MOST_MAPPED:
                await asyncio.to_thread(release_pages)
            if self._feedback is not None:
                read = await asyncio.to_thread(self._follow_log, self._feedback)
                self._failed_reads = 0 if read else self._failed_reads + 1

    async def _kill_silent_trainer(self, trainer: ChildProcess) -> None:
        """Kills a trainer that has failed MOST_FAILED_CHECKS checks; another one is started."""
        silent = 0
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            if not trainer.is_ready or await self.proxy.fetch("/health/live", ALIVE_SECONDS) is not None:
                silent = 0
                continue
            silent += 1
            if silent >= MOST_FAILED_CHECKS:
                LOGGER.error("trainer_silent", looks=silent)
                silent = 0
                trainer.kill()

    def _follow_log(self, log: SiloLog[Any, Any]) -> bool:
        """Reads events that other processes have written to the log.

        False: the log cannot be read.
        """
        try:
            log.follow()
        except (DataError, UnavailableError) as error:
            LOGGER.warning("feedback_not_read", reason=str(error))
            return False
        return True

    def _load_publication(self) -> None:
        """Loads the trainer's last publication, unless it is loaded already.

        The trainer may remove a folder while it is opened here. The next check tries an unreadable publication again.
        """
        try:
            if self._answers is not None:
                self._answers.drop_fallback()
            found = read_publication(self._serving)
            if found is None or found == self._published:
                return
            self._open_publication(found)
        except (DataError, UnavailableError) as error:  # the latter: another process has locked the log
            if str(error) != self._unreadable:
                LOGGER.warning("published_not_read", reason=str(error))
            self._unreadable = str(error)
            self.no_answers_reason = UNREADABLE_FILES if isinstance(error, DataError) else str(error)
            return
        self._published, self._unreadable = found, ""
        self.metrics.serving.set(0 if found.model is None else 1)
        LOGGER.info("model_loaded", model=found.version)

    def _open_publication(self, found: Publication) -> None:
        """Opens a publication, and lets it answer.

        With a new shard the log moves to new objects. Until the lists of a new model are filled, the model before it
        answers from its own lists.
        """
        before = self._answers
        if before is not None and self._published is not None and found.shard == self._published.shard:
            self._replace_answers(before.with_model(self._serving, found), before)
            return
        new = OPEN_ANSWERS[found.task](self._serving, found, self.settings)
        kind = EVENT_LOGS.get(found.task)
        if kind is None:
            self._replace_answers(new, before)
        elif self._feedback is None:
            self._feedback = kind.open_log(self.settings, new.overlay)
            self._replace_answers(new, before)
        else:
            self._feedback.switch_overlay(new.overlay, lambda: self._replace_answers(new, before))

    def _replace_answers(self, new: ModelServer, before: ModelServer | None) -> None:
        """Lets `new` answer; until its lists are filled, those of `before` stand in."""
        if before is not None and before is not new:
            new.set_fallback(before)
        self._answers = new

    @property
    def unready_reason(self) -> str | None:
        """Reason why the server is not ready; None when it is.

        A server whose log is unreadable does not know which users are erased, and could answer with an erased user's
        list.
        """
        if self._failed_reads >= MOST_FAILED_READS:
            return "expected a readable event log, got errors, so erased users are unknown: see the process log"
        return super().unready_reason

    @property
    def trainer_status(self) -> TrainerStatus | None:
        if not self.settings.has_trainer:
            return None
        there = find_socket(self.settings.state_directory).exists() if self.trainer is None else self.trainer.is_ready
        return "running" if there else "starting"

    async def describe_metrics(self) -> bytes:
        """Writes the series of this server and of a trainer that answers in time."""
        others = await self.proxy.fetch("/metrics", METRICS_SECONDS) if self.settings.has_trainer else None
        return join_metrics(self.metrics.text(), others or b"")
