"""Answers applications in a process of its own, from what the trainer keeps on the disk, and takes their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from client_service.compiled.publication import SERVING, Publication, read_publication
from client_service.event_log.service import EventLog
from client_service.http.answering import Answering
from client_service.http.authentication import CallerKeys
from client_service.http.trainer_proxy import TrainerProxy
from client_service.metrics import RequestMetrics, join_metrics
from client_service.runtime.logs import LOGGER
from client_service.runtime.trainer_process import ChildProcess
from client_service.serving.next_items import NextItems, open_next_items
from client_service.serving.recommender import Recommender, open_recommender
from client_service.settings import ClientSettings
from client_service.tasks.items import open_log
from shared.errors import DataError, UnavailableError
from shared.web.health import TrainerStanding

LOOK_SECONDS = 0.5  # between two looks at what is published, and at whether the log can be read
UNREAD_LOOKS = 30  # in a row, after which who asks is better served by another server
METRICS_SECONDS = 2.0  # for the trainer's series


class Server(Answering):
    """Answers from what the trainer has published last, and writes the log of events. It asks nobody outside.

    trainer: the process that it has started beside itself; None for one that answers and nothing else.
    """

    def __init__(self, settings: ClientSettings, trainer: ChildProcess | None = None) -> None:
        super().__init__(settings)
        self.metrics = RequestMetrics()
        self.trainer, self.proxy = trainer, None if trainer is None else self._make_proxy(trainer)
        self._serving = settings.state_directory / SERVING
        self._published: Publication | None = None
        self._unread = 0  # looks in a row at which the log could not be read

    def _make_proxy(self, trainer: ChildProcess) -> TrainerProxy:
        return TrainerProxy(self.settings.state_directory, CallerKeys.of(self.settings), lambda: not trainer.is_ready)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """DataError or SettingsError where the log is of no use."""
        await asyncio.to_thread(self._take_up_published)
        self._following = asyncio.create_task(self._follow())
        try:
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
            await asyncio.sleep(LOOK_SECONDS)
            await asyncio.to_thread(self._take_up_published)
            if self._feedback is not None:
                read = await asyncio.to_thread(self._follow_log, self._feedback)
                self._unread = 0 if read else self._unread + 1

    def _follow_log(self, log: EventLog) -> bool:
        """Take up what others have written in the log. False where it cannot be read."""
        try:
            log.follow()
        except (DataError, UnavailableError) as error:
            LOGGER.warning("feedback_not_read", reason=str(error))
            return False
        return True

    def _take_up_published(self) -> None:
        """Answer from what the trainer has published last, if it is something else than what answers.

        Folders may go while they are opened: what cannot be read is looked at again the next time.
        """
        try:
            found = read_publication(self._serving)
            if found is None or found == self._published:
                return
            self._take_up(found)
        except DataError as error:
            LOGGER.warning("published_not_read", reason=str(error))
            return
        self._published = found
        self.metrics.serving.set(0 if found.model is None else 1)
        LOGGER.info("model_taken_up", model=found.version)

    def _take_up(self, found: Publication) -> None:
        before = self._answers
        if before is not None and self._published is not None and found.shard == self._published.shard:
            assert isinstance(before, Recommender | NextItems)
            return before.take_up(self._serving, found)
        if found.task != "items":
            self._answers = open_next_items(self._serving, found)
            return
        new = open_recommender(self._serving, found, self.settings.least_rating)
        if self._feedback is None:
            self._feedback = open_log(self.settings, new.overlay)
            self._answers = new
        else:
            self._feedback.move_to(new.overlay, lambda: setattr(self, "_answers", new))

    @property
    def hindrance(self) -> str | None:
        """Also that it does not know who is erased: it would answer with an erased user's list."""
        if self._unread >= UNREAD_LOOKS:
            return "what applications have told cannot be read: who is erased is not known"
        return super().hindrance

    @property
    def trainer_standing(self) -> TrainerStanding | None:
        if self.trainer is None:
            return None
        return "running" if self.trainer.is_ready else "starting"

    async def describe_metrics(self) -> bytes:
        """The trainer's series too, where it gives them."""
        others = None if self.proxy is None else await self.proxy.fetch("/metrics", METRICS_SECONDS)
        return join_metrics(self.metrics.text(), others or b"")
