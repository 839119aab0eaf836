"""What answers a silo's applications, in the process that trains and in those beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from client_service.device import choose_device
from client_service.feedback.feedback import Feedback
from client_service.metrics import RequestMetrics
from client_service.schemas import RecommendationsIn, RecommendationsOut
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

    def recommend_users(self, message: RecommendationsIn) -> tuple[RecommendationsOut, ...]:
        """A list for each of the message's users."""
        return self.recommender.for_users(message.users or (), _limits(self.recommender, message))

    def _recommend_baskets(self, messages: Sequence[RecommendationsIn]) -> tuple[RecommendationsOut, ...]:
        recommender = self.recommender
        return recommender.for_baskets(
            [Basket(message.basket or (), _limits(recommender, message)) for message in messages]
        )

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


def _limits(recommender: Recommender, message: RecommendationsIn) -> Limits:
    return recommender.limits(message.k, message.exclude_seen, message.allow, message.exclude)
