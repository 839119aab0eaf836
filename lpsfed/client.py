"""Client that waits for each answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Self, TypeVar, Unpack

import httpx

from lpsfed import calls
from lpsfed.answers import (
    CatalogueItem,
    CataloguePage,
    Erasure,
    KeptModel,
    LabelledNodes,
    Recommendations,
    SentInteractions,
    SentNodes,
    ServedModel,
    ShardRefresh,
    SimilarItems,
)
from lpsfed.calls import ApiCall, BatchOptions, Interaction, ListOptions, NewNode, NodeEvent
from lpsfed.connection import TIMEOUT_SECONDS, connection_options, describe_failure
from lpsfed.retrying import Retrying

Answer = TypeVar("Answer")


class Client:
    """Client of a silo's API, with an application's key or the operator's.

    ca: PEM file of the trusted authorities of the silo's certificate; without it those that httpx knows. timeout:
    seconds of silence in one attempt. transport: of httpx, in place of sockets. Each call raises RefusedError,
    UnreachableError or AnswerError. Threads may share a client.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        ca: str | PathLike[str] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        retrying: Retrying | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(**connection_options(url, key, ca, timeout), transport=transport)
        self._retrying = retrying or Retrying()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def recommend(self, user: str, **options: Unpack[ListOptions]) -> Recommendations:
        """Recommends items to a user; popular items to an unknown one."""
        return self._send(calls.recommend(user, options))

    def recommend_users(self, users: Iterable[str], **options: Unpack[BatchOptions]) -> Iterator[Recommendations]:
        """Recommends items to each user, in this order.

        Any number of users: they are sent a few hundred at a time.
        """
        for chunk in calls.split_chunks(users, calls.USERS_A_CALL):
            yield from self._send(calls.recommend_users(chunk, options)).results

    def recommend_basket(self, basket: Iterable[str], **options: Unpack[BatchOptions]) -> Recommendations:
        """Recommends items to an unknown user with these items."""
        [found] = self._send(calls.recommend_basket(basket, options)).results
        return found

    def predict_next(
        self, session: Sequence[str], *, k: int = 20, exclude_seen: bool = False, exclude: Sequence[str] = ()
    ) -> Recommendations:
        """Predicts the items clicked next in a session.

        session: the items clicked so far, in order. A silo of users refuses the call.
        """
        [found] = self._send(calls.predict_next([session], k, exclude_seen, exclude)).results
        return found

    def predict_next_of(
        self, sessions: Sequence[Sequence[str]], *, k: int = 20, exclude_seen: bool = False, exclude: Sequence[str] = ()
    ) -> tuple[Recommendations, ...]:
        """Predicts the items clicked next in each of at most 1,000 sessions."""
        return self._send(calls.predict_next(sessions, k, exclude_seen, exclude)).results

    def find_similar(self, item: str, k: int = 20) -> SimilarItems:
        """Finds items similar to an item.

        Raises RefusedError with code `not-found` for an unknown one.
        """
        return self._send(calls.find_similar(item, k))

    def search_items(self, query: str = "", *, k: int = 20, offset: int = 0) -> CataloguePage:
        """Searches items whose titles hold each word; without words lists the catalogue."""
        return self._send(calls.search_items(query, k, offset))

    def read_item(self, item: str) -> CatalogueItem:
        """Reads an item's title, categories and attributes.

        Raises RefusedError with code `not-found` for an unknown one.
        """
        return self._send(calls.read_item(item))

    def put_item(
        self,
        item: str,
        *,
        title: str | None = None,
        categories: Sequence[str] = (),
        attributes: Mapping[str, bool | float | str] | None = None,
        hidden: bool = False,
    ) -> None:
        """Sets an item's description, replacing the earlier one.

        A hidden item appears in no list.
        """
        self._send(calls.put_item(item, title, categories, attributes or {}, hidden))

    def delete_item(self, item: str) -> None:
        """Hides an item and deletes its description."""
        self._send(calls.delete_item(item))

    def send_interactions(self, interactions: Iterable[Interaction]) -> SentInteractions:
        """Sends any number of interactions; all are on the silo's disk when this returns.

        Where it raises, those of the first calls are; the same Interaction objects may be sent again: each counts
        once.
        """
        sent = SentInteractions()
        for chunk in calls.split_chunks(interactions, calls.INTERACTIONS_A_CALL):
            sent += self._send(calls.send_interactions(chunk))
        return sent

    def label_nodes(self, nodes: Sequence[str | NewNode]) -> LabelledNodes:
        """Asks for the most likely label of each of at most 1,000 nodes.

        nodes: ids of the silo's, or descriptions of others. Raises RefusedError with code `not-found` where an id is
        unknown. A silo of users or visits refuses the call.
        """
        return self._send(calls.label_nodes(nodes))

    def send_nodes(self, events: Iterable[NodeEvent]) -> SentNodes:
        """Sends features, edges and labels of any number of nodes.

        All are on the silo's disk when this returns. Where it raises, those of the first calls are; to send the same
        again changes nothing.
        """
        sent = SentNodes()
        for chunk in calls.split_chunks(events, calls.NODES_A_CALL):
            sent += self._send(calls.send_nodes(chunk))
        return sent

    def erase_node(self, node: str) -> Erasure:
        """Erases a node with its features, edges and label from all that the silo keeps."""
        return self._send(calls.erase_node(node))

    def erase_user(self, user: str) -> Erasure:
        """Erases a user from everything that the silo keeps.

        `read_erasure` tells by the receipt whether it is done.
        """
        return self._send(calls.erase_user(user))

    def read_erasure(self, receipt: str) -> Erasure:
        """Reads the state of an erasure."""
        return self._send(calls.read_erasure(receipt))

    def read_model(self) -> ServedModel:
        """Reads which model answers now."""
        return self._send(calls.read_model())

    def refresh(self) -> ShardRefresh:
        """Starts a refresh: the shard absorbs new events, and the model is computed again.

        With the operator's key. Raises RefusedError with code `conflict` while one is in progress. The call is not
        repeated where it may have been done.
        """
        return self._send(calls.refresh())

    def read_refresh(self) -> ShardRefresh:
        """Reads the state of the refresh. With the operator's key."""
        return self._send(calls.read_refresh())

    def list_models(self) -> tuple[KeptModel, ...]:
        """Lists the kept models, the served one first. With the operator's key."""
        return self._send(calls.list_models()).models

    def serve_model(self, version: str) -> tuple[KeptModel, ...]:
        """Serves an earlier model until a run has a better one; returns all kept.

        With the operator's key. One of an earlier shard answers under another version, and its own is kept no more:
        the call is not repeated where it may have been done. `list_models` then tells which one answers.
        """
        return self._send(calls.serve_model(version)).models

    def _send(self, call: ApiCall[Answer]) -> Answer:
        request = call.build(self._http)
        attempts = self._retrying.attempts
        for attempt in range(1, attempts + 1):
            last = self._try_once(request)
            if isinstance(last, httpx.Response) and not self._retrying.is_busy(last):
                return call.read(last)
            if attempt == attempts or not self._retrying.may_repeat(last, repeatable=call.repeatable):
                break
            time.sleep(self._retrying.pause(attempt, last if isinstance(last, httpx.Response) else None))
        raise describe_failure(call, attempt, last)

    def _try_once(self, request: httpx.Request) -> httpx.Response | httpx.TransportError:
        try:
            return self._http.send(request)
        except httpx.TransportError as error:
            return error
