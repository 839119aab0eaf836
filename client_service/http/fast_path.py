"""Fast path for frequent reads of applications: lists, baskets, similar items, next items, labels.

An answer has status 200 and the bytes that the route would write. Every other request goes on to the framework
unchanged: one in an unusual spelling, one that is refused, and one that cannot be answered yet.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from fastapi.concurrency import run_in_threadpool
from prometheus_client import Histogram
from pydantic import ValidationError
from pydantic_core import to_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from client_service.data.ids import normalise_id
from client_service.http.answer_service import AnswerService
from client_service.http.authentication import CallerKeys
from client_service.runtime.logs import LOGGER
from client_service.serving.messages import NextIn, RecommendationsIn
from client_service.serving.node_messages import LabelsIn
from client_service.serving.ranking import ListedItems, ListRequest, PlacedItem
from client_service.serving.recommender import Recommender
from shared.errors import FederationError, UnavailableError
from shared.timeouts import SILENCE_SECONDS
from shared.web import problems
from shared.web.connection_limits import mark_trusted
from shared.web.logs import write_line
from shared.web.middleware import (
    SMALL_MESSAGE,
    HeldBytes,
    TokenBuckets,
    address_key,
    adopt_or_create,
    bind_request_id,
    decode_percent,
    is_own_host,
)
from shared.web.plain_requests import Headers

LISTS, SIMILAR = "/v1/users/{user}/recommendations", "/v1/items/{item}/similar"
BASKETS, NEXT, LABELS = "/v1/recommendations", "/v1/next", "/v1/labels"
READS: Final = ((LISTS, b"/v1/users/", b"/recommendations"), (SIMILAR, b"/v1/items/", b"/similar"))
POSTS: Final = {route.encode(): route for route in (BASKETS, NEXT, LABELS)}
OK: Final = 200
DEFAULT_K: Final = 20  # items of a list, where the request names no number
LONGEST_ID: Final = 512
ITEM_END: Final = b"}"
MOST_PREPARED: Final = 1 << 14  # items whose bytes are kept: some 3 MB
QUERY: Final = re.compile(rb"(?:k=(?P<k>[1-9][0-9]{0,2}|1000))?(?:(?:(?<=.)&|(?<!.))new=(?P<new>[012]))?")
LENGTH: Final = re.compile(rb"[1-9][0-9]{0,5}")
JSON_TYPES: Final = frozenset((b"application/json", b"application/json; charset=utf-8"))
UNUSUAL_HEADERS: Final = frozenset((b"transfer-encoding", b"content-encoding", b"expect", b"upgrade"))
BODY_HEADERS: Final = UNUSUAL_HEADERS | {b"content-length"}
ID_HEADER: Final = problems.REQUEST_ID_HEADER.lower().encode()
COMMON_HEADERS: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))
APPLICATION: Final = "the application"  # whose requests are counted, as `CallerKeys.rate_limit_key` names it


class ReadTarget(NamedTuple):
    """A requested route, with the id in its path and the number of items.

    name and k have a meaning for the routes in `READS` alone, new for `LISTS`: how many places are reserved for new
    items.
    """

    route: str
    name: str = ""
    k: int = DEFAULT_K
    new: int | None = None


class FastPath:
    """An ASGI layer that answers frequent reads and passes other requests to `app`.

    The layer stands outside all layers of `app` except CORS. It shares with them `buckets` (requests of each caller),
    `held` (bytes of open bodies), the service's metrics and its log.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        service: AnswerService,
        keys: CallerKeys,
        buckets: TokenBuckets,
        held: HeldBytes,
        allowed_hosts: tuple[str, ...] = (),
    ) -> None:
        self.app = app
        self._service, self._buckets, self._held = service, buckets, held
        self._allowed_hosts = tuple(allowed_hosts)
        self._guarded, self._authorization = keys.asks("application"), _expected_header(keys.application)
        self._writer, self._record = ListWriter(), AnswerRecord(service.metrics.requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = time.perf_counter()
        if (found := self._begin(scope)) is None:
            return await self.app(scope, receive, send)
        target, who, identity = found
        receive = again = ReplayedReceive(receive)
        body = await self._answer(target, again, identity)
        if body is None:
            self._buckets.refund(who)
            return await self.app(scope, receive, send)
        try:
            await send({"type": "http.response.start", "status": OK, "headers": _write_headers(identity, body)})
            await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
        finally:
            self._record.write(scope["method"], target.route, time.perf_counter() - began, identity)

    def answer_at_once(self, scope: Scope) -> tuple[Headers, bytes] | None:
        """Answers from a known user's prepared list, without waiting.

        None: the list is not prepared, or the request is another one. See `shared.web.plain_requests.AnswerAtOnce`.
        """
        began = time.perf_counter()
        if (found := self._begin(scope, LISTS)) is None:
            return None
        target, who, identity = found
        try:
            body = self._look_up(target)
        except Exception:  # an unreadable log or a bug: the framework's route fails again and reports it
            body = None
        if body is None:
            self._buckets.refund(who)
            return None
        self._record.write(scope["method"], target.route, time.perf_counter() - began, identity)
        return _write_headers(identity, body), body

    def _begin(self, scope: Scope, route: str = "") -> tuple[ReadTarget, str, str] | None:
        """Finds the target, the caller to count and the id of a request.

        None: the framework is to read the request, its route is not `route`, or its caller asks too often. The
        framework refuses such a caller in its own words.
        """
        if (headers := self._admit(scope)) is None or (target := _find_target(scope, headers)) is None:
            return None
        who = APPLICATION if self._guarded else address_key(scope)
        if (route and target.route is not route) or self._buckets.take(who):
            return None
        if self._guarded:
            mark_trusted(scope)
        given = headers.get(ID_HEADER)
        return target, who, adopt_or_create(None if given is None else given.decode("latin-1"))

    def _look_up(self, target: ReadTarget) -> bytes | None:
        """Writes the body from a user's prepared list; None without one."""
        recommender = self._recommender()
        listed = None if recommender is None else recommender.look_up_list(target.name, target.k, target.new)
        return None if listed is None else self._writer.write(target.name, listed)

    def _admit(self, scope: Scope) -> dict[bytes, bytes] | None:
        """Returns the headers of a request to this host with the application's key.

        None for every other request, and where a header comes twice.
        """
        if scope["type"] != "http" or scope.get("root_path"):
            return None
        listed = scope["headers"]
        headers = dict(listed)
        if len(headers) != len(listed):
            return None
        host, key = headers.get(b"host"), headers.get(b"authorization")
        if host is None or not is_own_host(host.decode("latin-1"), self._allowed_hosts):
            return None
        if not self._guarded:
            return headers if key is None else None
        if key is None or self._authorization is None:
            return None
        return headers if hmac.compare_digest(key, self._authorization) else None

    async def _answer(self, target: ReadTarget, receive: ReplayedReceive, identity: str) -> bytes | None:
        """Writes the body of the answer.

        None: the framework is to read or to refuse the request, or the answer has failed.
        """
        try:
            if target.route is LISTS and (body := self._look_up(target)) is not None:
                return body
            with bind_request_id(identity):
                if target.route in (BASKETS, NEXT, LABELS):
                    return await self._answer_message(target, receive)
                return await self._answer_read(target)
        except (FederationError, ValidationError):
            return None
        except Exception:
            LOGGER.exception("fast_path_failed", **{problems.REQUEST_ID_FIELD: identity})
            return None

    async def _answer_read(self, target: ReadTarget) -> bytes | None:
        recommender = self._recommender()
        if recommender is None:
            return None
        if target.route is LISTS:
            found = await run_in_threadpool(recommender.for_user, target.name, ListRequest(target.k, new=target.new))
            return found.model_dump_json(exclude_none=True).encode()
        similar = await run_in_threadpool(recommender.similar, target.name, target.k)
        return similar.model_dump_json(exclude_none=True).encode()

    async def _answer_message(self, target: ReadTarget, receive: ReplayedReceive) -> bytes | None:
        """Answers a request whose body has come in one piece; None for any other body."""
        first = await receive.take_first()
        content = first.get("body", b"")
        if first["type"] != "http.request" or first.get("more_body") or len(content) > SMALL_MESSAGE:
            return None
        self._held.count += len(content)
        try:
            return await self._answer_content(target, content)
        finally:
            self._held.count -= len(content)

    async def _answer_content(self, target: ReadTarget, content: bytes) -> bytes | None:
        if target.route is NEXT:
            visits = await self._service.answer_visits(NextIn.model_validate_json(content))
            return visits.model_dump_json(exclude_none=True).encode()
        if target.route is LABELS:
            labels = await self._service.answer_nodes(LabelsIn.model_validate_json(content))
            return labels.model_dump_json(exclude_none=True).encode()
        message = RecommendationsIn.model_validate_json(content)
        if message.basket is None:
            return None
        found = await self._service.answer_basket(message)
        return b'{"results":[' + found.model_dump_json(exclude_none=True).encode() + b"]}"

    def _recommender(self) -> Recommender | None:
        try:
            answers = self._service.answers
        except UnavailableError:
            return None
        return answers if isinstance(answers, Recommender) else None


class AnswerRecord:
    """Counts and logs an answered request, with less work than `shared.web.middleware.AccessLog`."""

    def __init__(self, requests: Histogram) -> None:
        self._requests, self._logger = requests, logging.getLogger(LOGGER.name)
        self._known: dict[tuple[str, str], tuple[Histogram, str]] = {}

    def write(self, method: str, route: str, seconds: float, identity: str) -> None:
        """Writes one latency sample and one line of the log."""
        if (known := self._known.get((method, route))) is None:
            fields = {"method": method, "route": route, "status": OK, "client": None}
            known = self._requests.labels(method, route, OK), json.dumps(fields)[:-1]
            self._known[method, route] = known
        series, begun = known
        series.observe(seconds)
        if self._logger.isEnabledFor(logging.INFO):
            now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
            rest = f'"event": "request", "request_id": "{identity}", "level": "info", "timestamp": "{now}"'
            write_line(self._logger, f'{begun}, "seconds": {round(seconds, 6)!r}, {rest}}}')


def _expected_header(key: str | None) -> bytes | None:
    """Writes the Authorization header of a key in its usual spelling.

    None without a key, and for a key that a header cannot carry unchanged.
    """
    return f"Bearer {key}".encode() if key and key.isascii() and key == key.strip() else None


def _find_target(scope: Scope, headers: Mapping[bytes, bytes]) -> ReadTarget | None:
    """Finds the route, id and count that a request names.

    None: the framework is to read the request.
    """
    method, path = scope["method"], scope.get("raw_path") or b""
    if method == "POST":
        usual = UNUSUAL_HEADERS.isdisjoint(headers) and headers.get(b"content-type") in JSON_TYPES
        length = LENGTH.fullmatch(headers.get(b"content-length", b""))
        if not usual or length is None or int(length[0]) > SMALL_MESSAGE or scope["query_string"]:
            return None
        return None if path not in POSTS else ReadTarget(POSTS[path])
    if method not in ("GET", "HEAD") or not BODY_HEADERS.isdisjoint(headers):
        return None
    for route, before, behind in READS:
        if path.startswith(before) and path.endswith(behind):
            query, name = QUERY.fullmatch(scope["query_string"]), _decode_id(path[len(before) : -len(behind)])
            if query is None or name is None or (query["new"] is not None and route is not LISTS):
                return None
            new = None if query["new"] is None else int(query["new"])
            return ReadTarget(route, name, int(query["k"] or DEFAULT_K), new)
    return None


def _decode_id(segment: bytes) -> str | None:
    """Decodes a segment of a path to the id that a route gets.

    None: the segment is no id.
    """
    if b"/" in segment:
        return None
    text = decode_percent(segment)
    return normalise_id(text) if text is not None and 1 <= len(text) <= LONGEST_ID else None


class ListWriter:
    """Writes a prepared list in the bytes of RecommendationsOut, from prepared bytes of each item."""

    def __init__(self) -> None:
        # By the ids of a shard, so that they are freed with it: while lists are filled, two shards answer by turns.
        self._prepared = WeakKeyDictionary[Sequence[str], PreparedItems]()

    def write(self, user: str, listed: ListedItems) -> bytes:
        """Writes the body of an answer with a user's list."""
        prepared = self._prepared.get(listed.ids)
        if prepared is None or prepared.titles is not listed.titles or len(prepared.heads) > MOST_PREPARED:
            prepared = self._prepared[listed.ids] = PreparedItems(listed.titles, {}, {})
        rows = listed.rows
        try:
            heads, tails = prepared.find(rows)
        except KeyError:
            prepared.add(listed)
            heads, tails = prepared.find(rows)
        pieces = [b""] * (3 * len(rows))
        pieces[::3], pieces[2::3] = heads, tails
        if rows:
            pieces[1::3] = to_json(listed.scores)[1:-1].split(b",")
        for at, one in enumerate(listed.new):
            pieces.insert(3 * (one.place - at) + at, _write_new(one))
        items = b"".join(pieces)[1:]  # without the first comma
        values = to_json(user), to_json(listed.version), items
        return b'{"user":%b,"model":%b,"unknown_items":0,"items":[%b]}' % values


class PreparedItems(NamedTuple):
    """Prepared bytes of items by their rows, before and behind a score.

    titles: those in the bytes.
    """

    titles: Sequence[str | None] | None
    heads: dict[int, bytes]
    tails: dict[int, bytes]

    def find(self, rows: list[int]) -> tuple[list[bytes], list[bytes]]:
        """Finds the bytes of items; KeyError if they are not prepared."""
        return list(map(self.heads.__getitem__, rows)), list(map(self.tails.__getitem__, rows))

    def add(self, listed: ListedItems) -> None:
        """Prepares the items of a list."""
        for row in listed.rows:
            title = None if self.titles is None else self.titles[row]
            self.heads[row] = b',{"item":%b,"score":' % to_json(listed.ids[row])
            self.tails[row] = ITEM_END if title is None else b',"title":%b}' % to_json(title)


def _write_new(one: PlacedItem) -> bytes:
    title = b"" if one.title is None else b',"title":%b' % to_json(one.title)
    return b',{"item":%b,"score":%b%b,"reason":"new"}' % (to_json(one.item), to_json(one.score), title)


class ReplayedReceive:
    """A receive channel of ASGI whose first message can be read twice.

    `take_first` reads the message, and the next receiver gets the same one again.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._first: Message | TimeoutError | None = None

    async def take_first(self) -> Message:
        """Reads the first message.

        A disconnect stands for a caller who is silent for more than SILENCE_SECONDS.
        """
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                self._first = await self._receive()
        except TimeoutError as error:
            self._first = error
            return {"type": "http.disconnect"}
        return self._first

    async def __call__(self) -> Message:
        first, self._first = self._first, None
        if isinstance(first, TimeoutError):  # `BodyTimeout` refuses it
            raise first
        return await self._receive() if first is None else first


def _write_headers(identity: str, body: bytes) -> Headers:
    return [(b"content-length", b"%d" % len(body)), *COMMON_HEADERS, (ID_HEADER, identity.encode())]
