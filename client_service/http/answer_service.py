"""Answers applications' requests, in the training process and in serving processes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from fastapi import Response
from fastapi.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from client_service.compiled.publication import REFRESH, parse_version
from client_service.event_log.node_log import NodeLog
from client_service.event_log.service import EventLog, SiloLog
from client_service.metrics import RequestMetrics
from client_service.runtime.workers import RequestBatcher
from client_service.serving.messages import (
    MOST_USERS,
    ModelOut,
    NextIn,
    NextListOut,
    RecommendationsIn,
    RecommendationsOut,
)
from client_service.serving.model_server import ModelServer
from client_service.serving.next_items import NextItems
from client_service.serving.node_labels import NodeLabels
from client_service.serving.node_messages import LabelListOut, LabelsIn
from client_service.serving.ranking import MOST_LISTED, Basket, ListRequest
from client_service.serving.recommender import Recommender
from shared.errors import ConflictError, ProtocolError, UnavailableError
from shared.timeouts import SILENCE_SECONDS
from shared.web.health import TrainerStatus
from shared.web.routes import JSON

NDJSON: Final = "application/x-ndjson"
WEIGHT = re.compile(r"0(\.[0-9]{0,3})?|1(\.0{0,3})?")  # of a range in an Accept header
CHUNK = 100  # users whose lists are in memory at a time
NODES_AT_ONCE, EDGES_AT_ONCE = 4, 200  # of a request: computed in less than a few milliseconds
THREADS = 2  # of all batches and streams of one service: each takes megabytes while it is written
Compute = Callable[[Sequence[str]], Sequence[RecommendationsOut]]


class _Lines(StreamingResponse):
    """Streamed answer that ends when its caller stops reading for SILENCE_SECONDS.

    This bounds the wait, and the bytes that wait to be sent.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(SILENCE_SECONDS):
                await send(message)

        await super().__call__(scope, receive, send_in_time)


def wants_lines(accept: str) -> bool:
    """Tells whether an Accept header prefers JSON lines to one document."""
    return prefers(accept, NDJSON, JSON)


def prefers(accept: str, kind: str, usual: str) -> bool:
    """Tells whether an Accept header prefers one media type to the usual one.

    RFC 9110, 12.5.1: the most specific range of a type counts, `q=0` excludes it. At equal weights the type that the
    header names wins. A header that excludes both types, or says nothing, leaves the usual one.
    """
    ranges = _read_ranges(accept)
    weight, weight_of_usual = _weigh(ranges, kind), _weigh(ranges, usual)
    return weight > weight_of_usual or (weight == weight_of_usual > 0.0 and kind in ranges)


def _read_ranges(accept: str) -> dict[str, float]:
    """Reads the media ranges of an Accept header with their weights.

    Of a range that comes twice the larger weight counts. A range without a readable weight is left out.
    """
    found: dict[str, float] = {}
    for one in accept.lower().split(","):
        kind, *words = (word.strip() for word in one.split(";"))
        weights = [word.partition("=")[2].strip() for word in words if word.partition("=")[0].strip() == "q"]
        if all(WEIGHT.fullmatch(weight) for weight in weights):
            found[kind] = max(found.get(kind, 0.0), float(weights[0]) if weights else 1.0)
    return found


def _weigh(ranges: Mapping[str, float], kind: str) -> float:
    within = f"{kind.partition('/')[0]}/*"
    return next((ranges[one] for one in (kind, within, "*/*") if one in ranges), 0.0)


def stream_lists(users: Sequence[str], compute: Compute, threads: CapacityLimiter) -> Response:
    """Streams one line for each user, in the order of the users.

    threads: limits the threads of all streams together, so that other requests find free ones.
    """
    return _Lines(_write_lines(users, compute, threads), media_type=NDJSON, headers={"Cache-Control": "no-store"})


async def _write_lines(users: Sequence[str], compute: Compute, threads: CapacityLimiter) -> AsyncIterator[bytes]:
    for first in range(0, len(users), CHUNK):
        yield await to_thread.run_sync(_write_chunk, users[first : first + CHUNK], compute, limiter=threads)


def _write_chunk(users: Sequence[str], compute: Compute) -> bytes:
    return b"".join(one.model_dump_json(exclude_none=True).encode() + b"\n" for one in compute(users))


A = TypeVar("A", bound=ModelServer)
BasketRequest = tuple[Recommender, Basket]
"""A refresh may put another recommender in place while a basket waits; its limits are of the catalogue of this one."""


class AnswerService:
    """Service that answers applications, and runs the job that updates the model."""

    metrics: RequestMetrics
    no_answers_reason = "the client is reading its shard"  # for callers, before there is anything to answer from

    def __init__(self, task: str) -> None:
        self._task_name = task
        self._answers: ModelServer | None = None
        self._feedback: SiloLog[Any, Any] | None = None
        self._following: asyncio.Task[None] | None = None
        self._list_threads = CapacityLimiter(THREADS)
        self.baskets = RequestBatcher(self._recommend_baskets)
        self.visits = RequestBatcher(self._answer_visits, weigh=lambda message: message.weight, heaviest=MOST_LISTED)

    @property
    def answers(self) -> ModelServer:
        """Model server of the silo's task; UnavailableError before it is open."""
        if self._answers is None:
            raise UnavailableError(self.no_answers_reason)
        return self._answers

    def model_server(self, kind: type[A]) -> A:
        """Returns the model server of the class that a route needs.

        Raises ConflictError in a silo of another task.
        """
        if not isinstance(self.answers, kind):
            raise ConflictError(
                f"expected a request that a silo of task {self._task_name!r} can answer, got one for another task"
            )
        return self.answers

    @property
    def log(self) -> SiloLog[Any, Any]:
        """Event log. ConflictError in a silo that takes no events."""
        if self._feedback is None and self._answers is not None:
            raise ConflictError(f"expected a silo that takes events, got one of task {self._task_name!r}")
        if self._feedback is None:
            raise UnavailableError(self.no_answers_reason)
        return self._feedback

    @property
    def feedback(self) -> EventLog:
        """Event log of users and items. ConflictError in a silo of another task."""
        if self._answers is None or isinstance(self._feedback, EventLog):
            return cast(EventLog, self.log)
        raise ConflictError(f"expected a silo that takes events of users, got one of task {self._task_name!r}")

    @property
    def node_log(self) -> NodeLog:
        """Event log of nodes. ConflictError in a silo of another task."""
        if self._answers is None or isinstance(self._feedback, NodeLog):
            return cast(NodeLog, self.log)
        raise ConflictError(f"expected a silo that takes events of nodes, got one of task {self._task_name!r}")

    def describe_model(self) -> ModelOut:
        """Describes the model that answers now."""
        answers, served = self.answers, self.answers.served
        sizes = {"users": answers.known_users, "items": answers.shown_items, "score": answers.score_meaning}
        if served is None:
            return ModelOut(**sizes)
        run, number = parse_version(served.version)
        trained = {} if run == REFRESH else {"run": run, "round": number}
        return ModelOut(version=served.version, kept_at=served.kept_at or None, **trained, **sizes)

    async def answer_basket(self, message: RecommendationsIn) -> RecommendationsOut:
        """Answers a message's basket with a list.

        A quick list is computed at once, another one with all others that wait.
        """
        recommender = self.model_server(Recommender)
        basket = Basket(message.basket or (), await _read_limits(recommender, message))
        return recommender.answer_quick_basket(basket) or await self.baskets.ask((recommender, basket))

    async def answer_visits(self, message: NextIn) -> NextListOut:
        """Predicts the next items of the message's sessions, batched with other waiting requests."""
        self.model_server(NextItems)
        return await self.visits.ask(message)

    def _answer_visits(self, messages: Sequence[NextIn]) -> Sequence[NextListOut]:
        return self.model_server(NextItems).answer_all(messages)

    async def answer_nodes(self, message: LabelsIn) -> LabelListOut:
        """Labels the nodes of a message: a few at once, more in a thread."""
        labels = self.model_server(NodeLabels)
        if len(message.nodes) <= NODES_AT_ONCE and labels.count_edges(message) <= EDGES_AT_ONCE:
            return labels.answer(message)
        return await to_thread.run_sync(labels.answer, message, limiter=self._list_threads)

    async def answer_users(self, message: RecommendationsIn) -> tuple[RecommendationsOut, ...]:
        """Computes a list for each of the message's users."""
        users = message.users or ()
        if len(users) > MOST_USERS:
            raise ProtocolError(f"body.users: expected at most {MOST_USERS} without {NDJSON}, got {len(users)}")
        if (listed := len(users) * message.k) > MOST_LISTED:
            words = f"expected at most {MOST_LISTED} items in all lists together (users x k) without {NDJSON}"
            raise ProtocolError(f"body.users: {words}, got {listed}")
        recommender = self.model_server(Recommender)
        limits = await _read_limits(recommender, message)
        return await to_thread.run_sync(recommender.recommend_users, users, limits, limiter=self._list_threads)

    async def stream_users(self, message: RecommendationsIn) -> Response:
        """Streams a list for each of the message's users.

        Errors in the message are raised before the first line is sent.
        """
        recommender = self.model_server(Recommender)
        limits = await _read_limits(recommender, message)
        return stream_lists(
            message.users or (), lambda users: recommender.recommend_users(users, limits), self._list_threads
        )

    def _recommend_baskets(self, requests: Sequence[BasketRequest]) -> tuple[RecommendationsOut, ...]:
        """Computes the lists of all baskets, grouped by the recommender that read each request.

        Requests that were read before a refresh are answered by the recommender of that time.
        """
        found: dict[int, RecommendationsOut] = {}
        for recommender in {id(one): one for one, _ in requests}.values():
            places = [place for place, (one, _) in enumerate(requests) if one is recommender]
            answers = recommender.recommend_baskets([requests[place][1] for place in places])
            found.update(zip(places, answers, strict=True))
        return tuple(found[place] for place in range(len(requests)))

    @property
    def trainer_status(self) -> TrainerStatus | None:
        """State of the trainer process beside this one.

        None: this process trains itself, or no process trains.
        """
        return None

    async def describe_metrics(self) -> bytes:
        """Writes counts and times in the text format of Prometheus."""
        return self.metrics.text()

    @property
    def live(self) -> bool:
        """Whether the background job runs; if it failed, only a restart helps."""
        return self._following is None or not self._following.done()

    @property
    def unready_reason(self) -> str | None:
        """Reason why the service is not ready; None when it is."""
        if self._answers is None:
            return self.no_answers_reason
        return None if self.live else "the agent has failed: see the log, and restart the client"


async def _read_limits(recommender: Recommender, message: RecommendationsIn) -> ListRequest:
    """Reads and checks a message's options against the catalogue of this recommender.

    Done before the request joins a batch, so that its errors do not fail the others.
    """
    read = partial(
        recommender.limits,
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
        new=message.new,
        only_new=message.only is not None,
    )
    lists = message.allow is not None or message.exclude or message.filter or message.freshness
    return await run_in_threadpool(read) if lists else read()
