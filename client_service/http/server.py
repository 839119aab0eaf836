"""Answers applications in a process of its own, from what the trainer keeps on the disk, and takes their events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from client_service.data.shard_head import stated_digest, states_other_lists
from client_service.federation.best_model import load_model
from client_service.http.answering import Answering
from client_service.http.authentication import CallerKeys
from client_service.http.trainer_proxy import TrainerProxy
from client_service.metrics import RequestMetrics, join_metrics
from client_service.model_store.model_files import ModelHead, load_head
from client_service.model_store.model_server import FrozenModel
from client_service.runtime.logs import LOGGER
from client_service.runtime.memory import return_free_memory
from client_service.runtime.trainer_process import ChildProcess
from client_service.settings import ClientSettings
from client_service.tasks.items import open_log
from shared.errors import DataError, UnavailableError
from shared.web.health import TrainerStanding

LOOK_SECONDS = 1.0  # between two looks at which model is kept, and at what others have told the log
UNREAD_LOOKS = 30  # in a row, after which who asks is better served by another server
METRICS_SECONDS = 2.0  # for the trainer's series


class Server(Answering):
    """Serves the model that the trainer kept last, and writes the log of events. It asks nobody outside.

    trainer: the process that it has started beside itself; None for one that answers and nothing else.
    """

    def __init__(self, settings: ClientSettings, trainer: ChildProcess | None = None) -> None:
        super().__init__(settings)
        self.metrics = RequestMetrics()
        self.trainer, self.proxy = trainer, None if trainer is None else self._make_proxy(trainer)
        self._head: ModelHead | None = None
        self._unread = 0  # looks in a row at which the log could not be read

    def _make_proxy(self, trainer: ChildProcess) -> TrainerProxy:
        return TrainerProxy(self.settings.state_directory, CallerKeys.of(self.settings), lambda: not trainer.is_ready)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """DataError or SettingsError where the shard or the log is of no use."""
        await asyncio.to_thread(self._take_up_shard)
        await self._take_up_newer()
        self._following = asyncio.create_task(self._follow())
        try:
            yield
        finally:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
            self.answers.close()
            if self._feedback is not None:
                self._feedback.close()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._take_up_newer()
            if self._feedback is None:
                continue
            absorbed = await asyncio.to_thread(self._follow_log)
            self._unread = self._unread + 1 if absorbed is None else 0
            if absorbed:
                await self._take_up_met()

    def _follow_log(self) -> bool | None:
        """Take up what others have written in the log. Is there a later shard that has absorbed it? None where it could
        not be read."""
        log = self.feedback
        try:
            log.follow()
            overlay = log.overlay
            return overlay.is_absorbed_elsewhere and states_other_lists(self.settings.shard, overlay.shard_digest)
        except (DataError, UnavailableError) as error:
            LOGGER.warning("feedback_not_read", reason=str(error))
            return None

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

    def _take_up_shard(self) -> None:
        """Read the shard, and what has come since; who asks is answered by the one before until there is a model."""
        self._shard = self.task.read(self.settings)
        self._next, self._overlay = self.task.follow(self.settings, self._shard)
        if self._answers is None:
            if self._overlay is not None:
                self._feedback = open_log(self.settings, self._overlay)
            self._answers = self._next

    async def _take_up_newer(self) -> None:
        """Serve the kept model, if it is another one than that which is served, and its shard, if that is another; and
        another shard without one, where no model of it could be kept.

        Their files may be replaced while they are read: what does not fit is looked at again the next time.
        """
        head = load_head(self.models)
        if head == self._head:
            return
        try:
            if (head is None or head.shard != self._shard.digest) and await self._finds_shard(head):
                await asyncio.to_thread(self._take_up_shard)
            if head is None:
                return self._serve_none()
            served = await asyncio.to_thread(self._read_model)
        except (DataError, OSError) as error:
            LOGGER.warning("kept_model_not_read", reason=str(error) if isinstance(error, DataError) else error.strerror)
            return
        if served is None:  # of a shard that is not there yet
            return
        self._head = head
        self._serve(served)
        await asyncio.to_thread(return_free_memory)

    async def _take_up_met(self) -> None:
        """The shard has the same likings and the same model, and other items that users have met: read it anew."""
        if self._head is None or self._head.shard != await asyncio.to_thread(stated_digest, self.settings.shard):
            return  # a shard of other likings is taken up with its model
        try:
            await asyncio.to_thread(self._take_up_shard)
        except (DataError, OSError) as error:
            LOGGER.warning("shard_not_read", reason=str(error) if isinstance(error, DataError) else error.strerror)
            return
        self._head = None
        await self._take_up_newer()

    async def _finds_shard(self, head: ModelHead | None) -> bool:
        """Is there another shard than the one that answers: that of the kept model, or where none is kept any?"""
        stated = await asyncio.to_thread(stated_digest, self.settings.shard)
        return stated not in (None, self._shard.digest) and (head is None or head.shard == stated)

    def _serve_none(self) -> None:
        """The model is gone, and with its shard: popular items of the new one. On the same shard the one that is served
        goes on."""
        if self.answers is not self._next:
            self._head = None
            self._put_in_place()
            self.metrics.serving.set(0)

    def _serve(self, served: FrozenModel) -> None:
        self._next.served = served
        self._put_in_place()
        self.metrics.serving.set(1)
        LOGGER.info("model_taken_up", model=served.version)

    def _put_in_place(self) -> None:
        if (before := self.answers) is not self._next:
            if self._feedback is not None and self._overlay is not None:
                self._feedback.move_to(self._overlay, self._publish)
            else:
                self._publish()
            before.close()

    def _publish(self) -> None:
        self._answers = self._next

    def _read_model(self) -> FrozenModel | None:
        everything = self.settings.fit_everything
        return load_model(self.task, self._shard, self.models, self.device, fit_everything=everything)
