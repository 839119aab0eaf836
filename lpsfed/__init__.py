"""Python client of a silo's API: recommendations, interactions, and some operator's calls.

`Client` waits for each answer, `AsyncClient` is awaited; both have the same calls. docs/client.md shows them in use.
"""

from lpsfed.answers import (
    CatalogueItem,
    CataloguePage,
    Erasure,
    JoiningGain,
    KeptModel,
    LabelledNode,
    LabelledNodes,
    NeighbourContribution,
    Reason,
    Recommendations,
    RecommendedItem,
    SentInteractions,
    SentNodes,
    ServedModel,
    ShardRefresh,
    SimilarItems,
)
from lpsfed.asynchronous import AsyncClient
from lpsfed.calls import BatchOptions, Interaction, ListOptions, NewNode, NodeEvent
from lpsfed.client import Client
from lpsfed.errors import AnswerError, RefusedError, SiloError, UnreachableError
from lpsfed.retrying import Retrying

__all__ = [
    "AnswerError",
    "AsyncClient",
    "BatchOptions",
    "CatalogueItem",
    "CataloguePage",
    "Client",
    "Erasure",
    "Interaction",
    "JoiningGain",
    "KeptModel",
    "LabelledNode",
    "LabelledNodes",
    "ListOptions",
    "NeighbourContribution",
    "NewNode",
    "NodeEvent",
    "Reason",
    "Recommendations",
    "RecommendedItem",
    "RefusedError",
    "Retrying",
    "SentInteractions",
    "SentNodes",
    "ServedModel",
    "ShardRefresh",
    "SiloError",
    "SimilarItems",
    "UnreachableError",
]
