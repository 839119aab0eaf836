"""A client of a silo's own API, for applications: recommendations for its users, and what these did since.

`Client` waits for each answer, `AsyncClient` is awaited; both have the same calls. docs/client.md shows them in use.
"""

from lpsfed.answers import (
    CatalogueItem,
    CataloguePage,
    Erasure,
    Reason,
    Recommendations,
    RecommendedItem,
    SentInteractions,
    ServedModel,
    SimilarItems,
)
from lpsfed.asynchronous import AsyncClient
from lpsfed.calls import Interaction, ListOptions
from lpsfed.client import Client
from lpsfed.errors import AnswerError, RefusedError, SiloError, UnreachableError
from lpsfed.retrying import Retrying

__all__ = [
    "AnswerError",
    "AsyncClient",
    "CatalogueItem",
    "CataloguePage",
    "Client",
    "Erasure",
    "Interaction",
    "ListOptions",
    "Reason",
    "Recommendations",
    "RecommendedItem",
    "RefusedError",
    "Retrying",
    "SentInteractions",
    "ServedModel",
    "SiloError",
    "SimilarItems",
    "UnreachableError",
]
