"""Calls of a silo's API: requests to build and answers to read, without sending.

Every call but two may be sent again: it reads, or it repeats what it said before, or its interactions have event ids.
A refresh that is asked for again is another one. An earlier model that is chosen may answer under another version,
and its own is then kept no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import cache
from itertools import islice
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import TypeAdapter, ValidationError

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
from lpsfed.errors import AnswerError, RefusedError

USERS_A_CALL = 250
INTERACTIONS_A_CALL = 1000
NODES_A_CALL = 500
LONGEST_WORDS = 500  # of an answer that is no problem document

Answer = TypeVar("Answer")
One = TypeVar("One")


class ListOptions(TypedDict, total=False):
    """Options of a list; docs/asking.md explains each. Those left out are the silo's."""

    k: int
    exclude_seen: bool
    filter: Sequence[str]
    exclude: Sequence[str]
    offset: int
    mmr: float
    freshness: float
    explain: bool
    raw: bool
    new: int
    only: Literal["new"]


class BatchOptions(ListOptions, total=False):
    """Options of lists that are asked for in a request's body.

    allow: only these items.
    """

    allow: Sequence[str]


@dataclass(frozen=True)
class Interaction:
    """Interaction of one user with one item.

    time: with an offset from UTC; by default when it arrives. rating: below the silo's least rating the interaction
    is not positive. event: made here, so that the same interaction counts once, however often it is sent.
    """

    user: str
    item: str
    time: datetime | None = None
    rating: float | None = None
    event: str = field(default_factory=lambda: uuid4().hex)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as the silo takes them.

        Raises ValueError for a time without an offset from UTC.
        """
        if self.time is not None and self.time.utcoffset() is None:
            raise ValueError("time: expected a datetime with an offset from UTC, got one without: set tzinfo")
        time = None if self.time is None else self.time.isoformat()
        return {name: value for name, value in (asdict(self) | {"time": time}).items() if value is not None}


@dataclass(frozen=True)
class NewNode:
    """Description of a node: a new one, or a silo's with other features or neighbours.

    features: by their names, or all in the shard's order. neighbours: weights of edges by the other node's id.
    """

    features: Mapping[str, float] | Sequence[float] | None = None
    neighbours: Mapping[str, float] | None = None
    node: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as the silo takes them."""
        edges = None if self.neighbours is None else _list_edges(self.neighbours)
        fields = {"node": self.node, "features": _list_features(self.features), "neighbours": edges}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class NodeEvent:
    """Features, edges and label of a node; fields left out stay as they are.

    neighbours: weights of edges by the other node's id; 0 removes the edge.

    label: one of the silo's classes. unlabelled: the label is not known any more.
    """

    node: str
    features: Mapping[str, float] | Sequence[float] | None = None
    neighbours: Mapping[str, float] = field(default_factory=dict)
    label: str | None = None
    unlabelled: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as the silo takes them."""
        found: dict[str, Any] = {"node": self.node, "neighbours": _list_edges(self.neighbours)}
        if (features := _list_features(self.features)) is not None:
            found["features"] = features
        if self.label is not None or self.unlabelled:
            found["label"] = self.label
        return found


def _list_edges(weights: Mapping[str, float]) -> list[dict[str, Any]]:
    return [{"node": node, "weight": weight} for node, weight in weights.items()]


def _list_features(features: Mapping[str, float] | Sequence[float] | None) -> dict[str, float] | list[float] | None:
    if features is None:
        return None
    return dict(features) if isinstance(features, Mapping) else list(features)


@dataclass(frozen=True)
class ApiCall(Generic[Answer]):
    """Call of the API.

    name: for errors, without any id. answer: the type that its answer is read as. repeatable: sent again, it does
    nothing more.
    """

    name: str
    method: str
    path: str
    answer: type[Answer]
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    repeatable: bool = True

    def build(self, http: httpx.Client | httpx.AsyncClient) -> httpx.Request:
        """Builds the request, with the address and headers of `http`."""
        return http.build_request(self.method, self.path, params=dict(self.query), json=self.body)

    def read(self, answer: httpx.Response) -> Answer:
        """Reads the answer's value.

        Raises RefusedError for a refusal, AnswerError for another answer than a silo's.
        """
        if not answer.is_success:
            raise self._refusal(answer)
        try:
            value: Answer = _reader(self.answer).validate_json(answer.content)  # type: ignore[arg-type]
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the answer"
            raise AnswerError(f"{self.name}: expected the answer of a silo, got {place}: {first['msg']}") from None
        return value

    def _refusal(self, answer: httpx.Response) -> RefusedError:
        problem = read_problem(answer)
        code, detail = problem.get("code", ""), problem.get("detail", "")
        return RefusedError(self.name, answer.status_code, code, detail, _read_faults(answer))


@cache
def _reader(answer: Any) -> TypeAdapter[Any]:
    """Returns the cached reader of a type from JSON.

    To build one takes a thousand times as long as to use it.
    """
    return TypeAdapter(answer)


@dataclass(frozen=True)
class _Batch:
    results: tuple[Recommendations, ...]


@dataclass(frozen=True)
class KeptModels:
    """Kept models, the served one first."""

    models: tuple[KeptModel, ...]


def read_problem(answer: httpx.Response) -> dict[str, str]:
    """Returns `code` and `detail` of a problem document, or another answer's beginning."""
    try:
        document = answer.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return {"detail": answer.text[:LONGEST_WORDS]}
    return {name: str(document[name]) for name in ("code", "detail") if name in document}


def _read_faults(answer: httpx.Response) -> tuple[tuple[str, str], ...]:
    """Lists `code` and `at` of each error of a problem document."""
    try:
        return tuple((str(one["code"]), str(one.get("at", ""))) for one in answer.json()["errors"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return ()


def recommend(user: str, options: ListOptions) -> ApiCall[Recommendations]:
    """Makes the call for a list for one user."""
    path = f"/v1/users/{_escape(user)}/recommendations"
    return ApiCall("GET /v1/users/{user}/recommendations", "GET", path, Recommendations, query=_query_values(options))


def recommend_users(users: Sequence[str], options: BatchOptions) -> ApiCall[_Batch]:
    """Makes the call for a list for each of at most USERS_A_CALL users."""
    return _call_for_lists({"users": list(users)}, options)


def recommend_basket(basket: Iterable[str], options: BatchOptions) -> ApiCall[_Batch]:
    """Makes the call for a list for an unknown user with these items."""
    return _call_for_lists({"basket": list(basket)}, options)


def predict_next(
    sessions: Sequence[Sequence[str]], k: int, exclude_seen: bool, exclude: Sequence[str]
) -> ApiCall[_Batch]:
    """Makes the call for the items clicked next after each session."""
    asked = {
        "sessions": [list(one) for one in sessions],
        "k": k,
        "exclude_seen": exclude_seen,
        "exclude": list(exclude),
    }
    return ApiCall("POST /v1/next", "POST", "/v1/next", _Batch, body=asked)


def label_nodes(nodes: Sequence[str | NewNode]) -> ApiCall[LabelledNodes]:
    """Makes the call for labels of the silo's nodes, by id, and of described ones."""
    asked = [one if isinstance(one, str) else one.to_json() for one in nodes]
    return ApiCall("POST /v1/labels", "POST", "/v1/labels", LabelledNodes, body={"nodes": asked})


def send_nodes(events: Sequence[NodeEvent]) -> ApiCall[SentNodes]:
    """Makes the call that sends at most NODES_A_CALL nodes."""
    body = {"nodes": [one.to_json() for one in events]}
    return ApiCall("POST /v1/nodes", "POST", "/v1/nodes", SentNodes, body=body)


def erase_node(node: str) -> ApiCall[Erasure]:
    """Makes the call that erases a node from everything that the silo keeps."""
    return ApiCall("DELETE /v1/nodes/{node}", "DELETE", f"/v1/nodes/{_escape(node)}", Erasure)


def find_similar(item: str, k: int) -> ApiCall[SimilarItems]:
    """Makes the call for items similar to an item."""
    path = f"/v1/items/{_escape(item)}/similar"
    return ApiCall("GET /v1/items/{item}/similar", "GET", path, SimilarItems, query={"k": k})


def search_items(query: str, k: int, offset: int) -> ApiCall[CataloguePage]:
    """Makes the call for a page of items whose titles hold all words."""
    asked = {"query": query, "k": k, "offset": offset}
    return ApiCall("GET /v1/items", "GET", "/v1/items", CataloguePage, query=asked)


def read_item(item: str) -> ApiCall[CatalogueItem]:
    """Makes the call for an item's title, categories and attributes."""
    return ApiCall("GET /v1/items/{item}", "GET", f"/v1/items/{_escape(item)}", CatalogueItem)


def put_item(
    item: str, title: str | None, categories: Sequence[str], attributes: Mapping[str, bool | float | str], hidden: bool
) -> ApiCall[object]:
    """Makes the call that sets an item's description, replacing the earlier one."""
    facts = {"title": title, "categories": list(categories), "attributes": dict(attributes), "hidden": hidden}
    return ApiCall("PUT /v1/items/{item}", "PUT", f"/v1/items/{_escape(item)}", object, body=facts)


def delete_item(item: str) -> ApiCall[object]:
    """Makes the call that hides an item and deletes its description."""
    return ApiCall("DELETE /v1/items/{item}", "DELETE", f"/v1/items/{_escape(item)}", object)


def send_interactions(interactions: Sequence[Interaction]) -> ApiCall[SentInteractions]:
    """Makes the call that sends at most INTERACTIONS_A_CALL interactions."""
    body = {"interactions": [one.to_json() for one in interactions]}
    return ApiCall("POST /v1/interactions", "POST", "/v1/interactions", SentInteractions, body=body)


def erase_user(user: str) -> ApiCall[Erasure]:
    """Makes the call that erases a user from everything that the silo keeps."""
    return ApiCall("DELETE /v1/users/{user}", "DELETE", f"/v1/users/{_escape(user)}", Erasure)


def read_erasure(receipt: str) -> ApiCall[Erasure]:
    """Makes the call for the state of an erasure."""
    return ApiCall("GET /v1/erasures/{receipt}", "GET", f"/v1/erasures/{_escape(receipt)}", Erasure)


def read_model() -> ApiCall[ServedModel]:
    """Makes the call for the model that answers now."""
    return ApiCall("GET /v1/model", "GET", "/v1/model", ServedModel)


def refresh() -> ApiCall[ShardRefresh]:
    """Makes the call that asks for a refresh."""
    return ApiCall("POST /v1/refresh", "POST", "/v1/refresh", ShardRefresh, repeatable=False)


def read_refresh() -> ApiCall[ShardRefresh]:
    """Makes the call for the state of the refresh."""
    return ApiCall("GET /v1/refresh", "GET", "/v1/refresh", ShardRefresh)


def list_models() -> ApiCall[KeptModels]:
    """Makes the call for the kept models."""
    return ApiCall("GET /v1/models", "GET", "/v1/models", KeptModels)


def serve_model(version: str) -> ApiCall[KeptModels]:
    """Makes the call that serves an earlier model."""
    path = f"/v1/models/{_escape(version)}/serve"
    return ApiCall("POST /v1/models/{version}/serve", "POST", path, KeptModels, repeatable=False)


def split_chunks(values: Iterable[One], size: int) -> Iterator[tuple[One, ...]]:
    """Yields the values in tuples of `size`, each read when needed."""
    rest = iter(values)
    while chunk := tuple(islice(rest, size)):
        yield chunk


def _call_for_lists(whom: Mapping[str, Any], options: BatchOptions) -> ApiCall[_Batch]:
    return ApiCall("POST /v1/recommendations", "POST", "/v1/recommendations", _Batch, body={**whom, **options})


def _query_values(options: ListOptions) -> dict[str, Any]:
    """Returns options as query parameters, without empty ones."""
    words = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    return {name: value for name, value in words.items() if value != []}


def _escape(name: str) -> str:
    """Escapes a name as one segment of a path; raises ValueError for an empty one.

    The dots of `.` and `..` would lead to another path.
    """
    if not name:
        raise ValueError("expected an id, got an empty text")
    return name.replace(".", "%2E") if name in (".", "..") else quote(name, safe="")
