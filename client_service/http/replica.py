"""The model that a client keeps on its disk -> answers, in another process, which changes nothing there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from client_service.data.shard_head import stated_digest
from client_service.federation.best_model import load_model
from client_service.http.answering import Answering
from client_service.metrics import RequestMetrics
from client_service.model_store.model_files import ModelHead, load_head
from client_service.model_store.model_server import FrozenModel
from client_service.runtime.logs import LOGGER
from client_service.runtime.memory import return_free_memory
from client_service.settings import ClientSettings
from shared.errors import DataError

LOOK_SECONDS = 1.0  # between two looks at which model is kept
UNREAD_LOOKS = 30  # in a row, after which who asks is better served by another replica, or by the client


class Replica(Answering):
    """Serves the model that the training process kept last. It asks nobody, and writes nothing."""

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(settings)
        self.metrics = RequestMetrics()
        self._head: ModelHead | None = None
        self._followers: tuple[Callable[[], bool | None], ...] = ()
        self._unread = 0  # looks in a row at which the log of who answers now could not be read

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """DataError or SettingsError where the shard is of no use."""
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

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._take_up_newer()
            behind = [await asyncio.to_thread(follow) for follow in self._followers]
            self._unread = self._unread + 1 if behind and behind[0] is None else 0
            if behind and behind[-1]:
                await self._take_up_met()

    @property
    def hindrance(self) -> str | None:
        """Also that it does not know who is erased: it would answer with an erased user's list."""
        if self._unread >= UNREAD_LOOKS:
            return "what applications have told the client cannot be read: who is erased is not known"
        return super().hindrance

    def _take_up_shard(self) -> None:
        """Read the shard, and what has come since; who asks is answered by the one before until there is a model."""
        self._shard = self.task.read(self.settings)
        self._next, follow = self.task.follow(self.settings, self._shard)
        self._followers = (*self._followers[:1], follow)  # of who answers now, and of who is to
        if self._answers is None:
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
            self._answers, self._followers = self._next, self._followers[-1:]
            before.close()

    def _read_model(self) -> FrozenModel | None:
        everything = self.settings.fit_everything
        return load_model(self.task, self._shard, self.models, self.device, fit_everything=everything)
