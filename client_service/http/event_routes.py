"""Routes by which applications post interactions, items and nodes, and erase users."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from fastapi.concurrency import run_in_threadpool

from client_service.event_log.messages import (
    RECEIPT,
    ErasedNodeOut,
    ErasedOut,
    ErasureOut,
    InteractionsIn,
    InteractionsOut,
    ItemIn,
    NodesIn,
    NodesOut,
    StoredId,
)
from client_service.http.authentication import COMMON, ApplicationRoute, Service
from shared.web.routes import JSON

router = APIRouter(tags=["feedback"], route_class=ApplicationRoute, **COMMON)
UserPath = Annotated[StoredId, Path(description="the user's id", examples=["4711"])]
NodePath = Annotated[StoredId, Path(description="the node's id", examples=["worker-17"])]
ItemPath = Annotated[StoredId, Path(description="the item's id, of the catalogue or not yet", examples=["boots"])]
ReceiptPath = Annotated[
    str,
    Path(pattern="^[0-9a-f]{32}$", description="receipt that erasing a user or a node returned", examples=[RECEIPT]),
]
HIDDEN_ITEM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "metadata of the item from now on",
        "content": {JSON: {"example": ItemIn(hidden=True).model_dump(mode="json")}},
    }
}


@router.post("/interactions")
async def post_interactions(message: InteractionsIn, service: Service) -> InteractionsOut:
    """Stores interactions of users.

    They are on the disk before this answer, and in the next recommendations of this process. Other servers follow
    within a second.
    """
    return await service.feedback.add_interactions(message)


@router.put("/items/{item}")
async def put_item(item: ItemPath, facts: ItemIn, service: Service) -> ItemIn:
    """Replaces all that applications have posted about an item."""
    return await service.feedback.put_item(item, facts)


@router.delete("/items/{item}", responses=HIDDEN_ITEM)
async def remove_item(item: ItemPath, service: Service) -> ItemIn:
    """Hides an item from all answers and forgets what was posted about it."""
    return await service.feedback.put_item(item, ItemIn(hidden=True))


@router.delete("/users/{user}")
async def erase_user(user: UserPath, service: Service) -> ErasedOut:
    """Erases a user.

    The user is unknown from the next answer on. Shard, caches, checkpoints and model follow in a refresh that begins by
    itself; the receipt tells when that is done.
    """
    return await run_in_threadpool(service.feedback.erase_user, user)


@router.post("/nodes")
async def post_nodes(message: NodesIn, service: Service) -> NodesOut:
    """Stores posted changes of nodes: features, edges and labels.

    It is on the disk before this answer, and in the next labels of this process. Other servers follow within a second.
    A node and its neighbours see it at once; nodes further away, and the model, with the next refresh.
    """
    return await service.node_log.add_nodes(message)


@router.delete("/nodes/{node}")
async def erase_node(node: NodePath, service: Service) -> ErasedNodeOut:
    """Erases a node, which is unknown from the next answer on.

    Its features, edges and label leave shard, caches, checkpoints and model with a refresh that begins by itself. The
    receipt tells when that is done.
    """
    return await run_in_threadpool(service.node_log.erase_node, node)


@router.get("/erasures/{receipt}")
async def read_erasure(receipt: ReceiptPath, service: Service) -> ErasureOut:
    """Returns the state of an erasure."""
    return await run_in_threadpool(service.log.read_erasure, receipt)
