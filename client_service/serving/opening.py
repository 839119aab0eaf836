"""A shard and what has come since -> who answers, with lists beside the models, and no model yet."""

from __future__ import annotations

from client_service.feedback.overlay import Overlay
from client_service.serving.lists import ListKeeper, ListReader
from client_service.serving.recommender import Recommender
from client_service.settings import ClientSettings
from client_service.shard import Shard


def open_recommender(settings: ClientSettings, shard: Shard, overlay: Overlay) -> Recommender:
    """It keeps lists of its users."""
    keeper = ListKeeper(settings.models_directory, shard, approximate_beyond=settings.approximate_beyond)
    return Recommender(shard, keeper, overlay)


def open_reader(settings: ClientSettings, shard: Shard, overlay: Overlay) -> Recommender:
    """It reads the lists that another process keeps."""
    reader = ListReader(settings.models_directory, shard, approximate_beyond=settings.approximate_beyond)
    return Recommender(shard, reader, overlay)
