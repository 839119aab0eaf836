"""HTTP -> what applications ask: recommendations for users and baskets, and similar items."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from fastapi.concurrency import run_in_threadpool

from client_service.callers import ForApplications
from client_service.lookups import LookedUp
from client_service.routes import COMMON, Service
from client_service.serving.filters import MOST_FILTERS
from client_service.serving.messages import (
    EXCLUDE,
    FILTER,
    OFFSET,
    SEEN,
    BatchOut,
    FilterText,
    Id,
    RecommendationsIn,
    RecommendationsOut,
    SimilarOut,
)
from client_service.serving.questions import DEEPEST

MOST_EXCLUDED = 200  # items that a query can name; a body can name more

recommendations = APIRouter(tags=["recommendations"], route_class=ForApplications, **COMMON)
looked_up = APIRouter(tags=["recommendations"], route_class=LookedUp, **COMMON)

UserPath = Annotated[str, Path(min_length=1, max_length=512, description="the user's id", examples=["4711"])]
ItemPath = Annotated[str, Path(min_length=1, max_length=512, description="the item's id", examples=["boots"])]
Count = Annotated[int, Query(ge=1, le=DEEPEST, description="how many items at most")]
Seen = Annotated[bool, Query(description=SEEN)]
Filters = Annotated[list[FilterText], Query(max_length=MOST_FILTERS, description=FILTER)]
Excluded = Annotated[list[Id], Query(max_length=MOST_EXCLUDED, description=EXCLUDE)]
Offset = Annotated[int, Query(ge=0, lt=DEEPEST, description=OFFSET)]


@looked_up.get("/users/{user:path}/recommendations", response_model_exclude_none=True)
async def recommend(
    user: UserPath,
    service: Service,
    k: Count = 20,
    exclude_seen: Seen = True,
    filter: Filters = [],  # noqa: B006
    exclude: Excluded = [],  # noqa: B006
    offset: Offset = 0,
) -> RecommendationsOut:
    """A look-up where the user's list is at hand and nothing else is asked for; else computed in a worker thread."""
    recommender = service.recommender
    if filter or exclude:
        asked = (k, exclude_seen, None, exclude, filter)
        limits = await run_in_threadpool(recommender.limits, *asked, offset=offset)
    else:
        limits = recommender.limits(k, exclude_seen, offset=offset)
        if not limits.costly and (found := recommender.at_once(user, limits)) is not None:
            return found
    return await run_in_threadpool(recommender.for_user, user, limits)


@recommendations.post("/recommendations", response_model_exclude_none=True)
async def recommend_batch(message: RecommendationsIn, service: Service) -> BatchOut:
    """Computed in worker threads: users each batch by itself, baskets with all others that wait."""
    if message.basket is not None:
        return BatchOut(results=(await service.answer_basket(message),))
    return BatchOut(results=await service.answer_users(message))


@recommendations.get("/items/{item:path}/similar", response_model_exclude_none=True)
def similar(item: ItemPath, service: Service, k: Count = 20) -> SimilarOut:
    """Items by the cosine of their embeddings in the served model."""
    version, items = service.recommender.similar(item, k)
    return SimilarOut(item=item, model=version, items=items)
