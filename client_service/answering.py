"""What answers a silo's applications, in the process that trains and in those beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from fastapi.concurrency import run_in_threadpool

from client_service.device import choose_device
from client_service.feedback.feedback import Feedback
from client_service.metrics import RequestMetrics
from client_service.renewal import REFRESH
from client_service.serving.messages import SCORE, ModelOut, RecommendationsIn, RecommendationsOut
from client_service.serving.questions import Basket, Limits
from client_service.serving.recommender import Recommender
from client_service.serving.together import Together
from client_service.settings import ClientSettings
from client_service.tasks import task_named
from shared.errors import UnavailableError


class Answering:
    """A recommender that is there once the shard is read, and a job that keeps its model up to date."""

    metrics: RequestMetrics

    def __init__(self, settings: ClientSettings) -> None:
        self.settings, self.task = settings, task_named(settings.task)
        self.device, self.device_reason = choose_device(settings.device)
        self.models = settings.state_directory / "model"
        self._recommender: Recommender | None = None
        self._feedback: Feedback | None = None
        self._following: asyncio.Task[None] | None = None
        self.baskets = Together(self._recommend_baskets)

    @property
    def recommender(self) -> Recommender:
        if self._recommender is None:
            raise UnavailableError("the client is reading its shard")
        return self._recommender

    @property
    def feedback(self) -> Feedback:
        if self._feedback is None:
            raise UnavailableError("the client is reading its shard")
        return self._feedback

    def describe_model(self) -> ModelOut:
        """The model that answers now, in an application's words."""
        recommender, served = self.recommender, self.recommender.served
        sizes = {"users": recommender.known_users, "items": recommender.catalogue.count_shown(), "score": SCORE}
        if served is None:
            return ModelOut(**sizes)
        run, _, number = served.version.rpartition(".")
        trained = {} if run == REFRESH else {"run": run, "round": int(number)}
        return ModelOut(version=served.version, kept_at=served.kept_at or None, **trained, **sizes)

    async def answer_basket(self, message: RecommendationsIn) -> RecommendationsOut:
        """A list for the message's basket, computed with all others that wait."""
        return await self.baskets.ask(Basket(message.basket or (), await self._limits(message)))

    async def answer_users(self, message: RecommendationsIn) -> tuple[RecommendationsOut, ...]:
        """A list for each of the message's users."""
        limits = await self._limits(message)
        return await run_in_threadpool(self.recommender.for_users, message.users or (), limits)

    async def _limits(self, message: RecommendationsIn) -> Limits:
        """What a message asks for, before it is computed with others: its mistakes are its own."""
        read = partial(
            self.recommender.limits,
            message.k,
            message.exclude_seen,
            message.allow,
            message.exclude,
            message.filter,
            offset=message.offset,
            mmr=message.mmr,
            freshness=message.freshness,
            explain=message.explain,
            raw=message.raw,
        )
        lists = message.allow is not None or message.exclude or message.filter or message.freshness
        return await run_in_threadpool(read) if lists else read()

    def _recommend_baskets(self, asked: Sequence[Basket]) -> tuple[RecommendationsOut, ...]:
        return self.recommender.for_baskets(asked)

    @property
    def live(self) -> bool:
        """False when the job has ended by a mistake of ours: then only a restart helps."""
        return self._following is None or not self._following.done()

    @property
    def hindrance(self) -> str | None:
        """Why nobody should ask for recommendations now; None where nothing is in the way."""
        if self._recommender is None:
            return "the client is reading its shard"
        return None if self.live else "the agent has ended; the log says why"
