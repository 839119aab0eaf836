"""Batches and items that are told at once share one transaction, and each is answered for itself."""

from __future__ import annotations

import pytest

from client_service.compilation.shard import compile_in_memory
from client_service.data.interaction_files import load_shard
from client_service.event_log.messages import InteractionIn, InteractionsIn, ItemIn
from client_service.event_log.overlay import Overlay
from client_service.event_log.service import EventLog
from client_service.event_log.store import EventStore
from client_service.settings import ClientSettings
from shared.errors import ConflictError, FederationError


@pytest.fixture
def feedback(settings: ClientSettings) -> EventLog:
    settings.state_directory.mkdir(parents=True)
    store = EventStore(settings.state_directory, most=4)
    return EventLog(store, Overlay(compile_in_memory(load_shard(settings.shard)), store), settings.shard)


def test_batches_of_one_group_share_events_and_room(feedback: EventLog) -> None:
    def batch(*events: str) -> InteractionsIn:
        told = (InteractionIn(event=one, user=one, item="item-00", time=None, rating=None) for one in events)
        return InteractionsIn(interactions=tuple(told))

    found = feedback._store_interactions([batch("a", "b"), batch("b", "c"), batch("d", "e"), batch("d")])
    assert [one if isinstance(one, FederationError) else (one.accepted, one.repeated) for one in found[:2]] == [
        (2, 0),
        (1, 1),
    ]
    assert isinstance(found[2], ConflictError) and not isinstance(found[3], FederationError)
    assert [one.user for one in feedback.store.interactions()] == ["a", "b", "c", "d"]
    assert (
        all(feedback.overlay.latest_events(user) is not None for user in "abcd")
        and feedback.overlay.latest_events("e") is None
    )
    feedback.close()


def test_of_an_item_that_is_told_twice_in_a_group_the_last_counts(feedback: EventLog) -> None:
    told = [("item-00", ItemIn(title=title)) for title in ("first", "second")]
    feedback._store_facts([*told, ("item-01", ItemIn(hidden=True))])
    assert feedback.overlay.titles is not None and feedback.overlay.titles[0] == "second"
    assert feedback.store.read_all()[0].items["item-00"].title == "second"
    assert isinstance(feedback._store_facts([(f"new-{n}", ItemIn()) for n in range(3)])[-1], ConflictError)
    feedback.close()
