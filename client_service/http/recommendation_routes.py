"""Routes of recommendations and the catalogue.

`fast_path` answers the frequent requests before a route gets them.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from client_service.http.answer_service import NDJSON, wants_lines
from client_service.http.authentication import COMMON, OTHER_TASK, PROBLEMS, ApplicationRoute, Service
from client_service.serving.messages import (
    EXCLUDE,
    EXPLAIN,
    FILTER,
    FRESHNESS,
    MMR,
    NEW,
    OFFSET,
    ONLY,
    RAW,
    SEEN,
    BatchOut,
    CatalogueItemOut,
    FilterText,
    Id,
    ItemsOut,
    ModelOut,
    NextIn,
    NextListOut,
    RecommendationsIn,
    RecommendationsOut,
    SimilarOut,
)
from client_service.serving.node_messages import LabelListOut, LabelsIn
from client_service.serving.ranking import DEEPEST, MOST_FILTERS
from client_service.serving.recommender import Recommender

MOST_EXCLUDED = 200  # items that a query can name; a body can name more
LONGEST_WORDS = 200
FURTHEST = 1 << 31  # place of an item in the catalogue

OF_ONE_TASK = COMMON | {"responses": PROBLEMS | OTHER_TASK}
recommendations = APIRouter(tags=["recommendations"], route_class=ApplicationRoute, **OF_ONE_TASK)
catalogue = APIRouter(tags=["catalogue"], route_class=ApplicationRoute, **OF_ONE_TASK)
served = APIRouter(tags=["catalogue"], route_class=ApplicationRoute, **COMMON)
LINES: dict[str, Any] = {
    "description": "the lists; with `Accept: application/x-ndjson` a line of JSON for each user",
    "content": {NDJSON: {"schema": {"type": "string", "description": "lines as `results` holds them"}}},
}
routers = (recommendations, catalogue, served)

UserPath = Annotated[Id, Path(description="the user's id", examples=["4711"])]
ItemPath = Annotated[Id, Path(description="the item's id", examples=["boots"])]
Count = Annotated[int, Query(ge=1, le=DEEPEST, description="how many items at most", examples=[5])]
Seen = Annotated[bool, Query(description=SEEN, examples=[True])]
Filters = Annotated[
    list[FilterText],
    Query(max_length=MOST_FILTERS, description=FILTER, examples=[["category:shoes", "colour:black|brown"]]),
]
Excluded = Annotated[list[Id], Query(max_length=MOST_EXCLUDED, description=EXCLUDE, examples=[["boots"]])]
Words = Annotated[str, Query(max_length=LONGEST_WORDS, description="words of a title", examples=["winter boots"])]
Place = Annotated[
    int, Query(ge=0, le=FURTHEST, description="items that come before the first answered one", examples=[20])
]
Offset = Annotated[int, Query(ge=0, lt=DEEPEST, description=OFFSET, examples=[20])]
Mmr = Annotated[float, Query(ge=0.0, le=1.0, description=MMR, examples=[0.3])]
Freshness = Annotated[float, Query(ge=0.0, le=1.0, description=FRESHNESS, examples=[0.2])]
Raw = Annotated[bool, Query(description=RAW, examples=[True])]
NewPlaces = Annotated[int | None, Query(ge=0, le=2, description=NEW, examples=[1])]
Only = Annotated[Literal["new"] | None, Query(description=ONLY, examples=["new"])]
Explain = Annotated[bool, Query(description=EXPLAIN, examples=[True])]


@recommendations.get("/users/{user}/recommendations", response_model_exclude_none=True)
async def recommend(
    user: UserPath,
    service: Service,
    k: Count = 20,
    exclude_seen: Seen = True,
    filter: Filters = [],  # noqa: B006
    exclude: Excluded = [],  # noqa: B006
    offset: Offset = 0,
    mmr: Mmr = 0.0,
    freshness: Freshness = 0.0,
    explain: Explain = False,
    raw: Raw = False,
    new: NewPlaces = None,
    only: Only = None,
) -> RecommendationsOut:
    """Recommends items to a user.

    A plain request for a known user is a look-up; other requests are computed in a worker thread.
    """
    recommender = service.model_server(Recommender)
    read = partial(
        recommender.limits,
        k,
        exclude_seen,
        None,
        exclude,
        filter,
        offset=offset,
        mmr=mmr,
        freshness=freshness,
        explain=explain,
        raw=raw,
        new=new,
        only_new=only is not None,
    )
    if filter or exclude or freshness:
        limits = await run_in_threadpool(read)
    else:
        limits = read()
        if not limits.costly and (found := recommender.answer_by_lookup(user, limits)) is not None:
            return found
    return await run_in_threadpool(recommender.for_user, user, limits)


@recommendations.post(
    "/recommendations", response_model=BatchOut, response_model_exclude_none=True, responses={200: LINES}
)
async def recommend_batch(message: RecommendationsIn, service: Service, request: Request) -> BatchOut | Response:
    """Recommends items to several users, or for one basket.

    With `Accept: application/x-ndjson` each user is a line, computed and sent in chunks, for up to 100,000 users.
    """
    if message.users is not None and wants_lines(", ".join(request.headers.getlist("accept"))):
        return await service.stream_users(message)
    if message.basket is not None:
        return BatchOut(results=(await service.answer_basket(message),))
    return BatchOut(results=await service.answer_users(message))


@recommendations.post("/next", response_model_exclude_none=True)
async def predict_next(message: NextIn, service: Service) -> NextListOut:
    """Predicts the next item of each session; 409 from a silo of another task."""
    return await service.answer_visits(message)


@recommendations.post("/labels", response_model_exclude_none=True)
async def label_nodes(message: LabelsIn, service: Service) -> LabelListOut:
    """Labels each node, of the silo or described; 409 without a graph of nodes."""
    return await service.answer_nodes(message)


@recommendations.get("/items/{item}/similar", response_model_exclude_none=True)
def read_similar_items(item: ItemPath, service: Service, k: Count = 20) -> SimilarOut:
    """Lists items by the cosine of their embeddings in the served model.

    Those like a new item are listed by the cosine of their texts' features.
    """
    return service.model_server(Recommender).similar(item, k)


@catalogue.get("/items", response_model_exclude_none=True)
def search_items(service: Service, query: Words = "", offset: Place = 0, k: Count = 20) -> ItemsOut:
    """Searches the catalogue for items whose titles contain all words; without words lists all items.

    Upper and lower case, composed and decomposed accents are the same (NFKC, full case folding); a letter with and
    without its accent is not.
    """
    return service.model_server(Recommender).catalogue.search(query, offset, k)


@catalogue.get("/items/{item}", response_model_exclude_none=True)
def read_item(item: ItemPath, service: Service) -> CatalogueItemOut:
    """Returns what is known about an item."""
    return service.model_server(Recommender).catalogue.read(item)


@served.get("/model", response_model_exclude_none=True)
async def read_model(service: Service) -> ModelOut:
    """Returns the model that answers now, and how many users and items it covers."""
    return service.describe_model()
