"""Who waits for the disk waits together, and each gets his own answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from client_service.feedback.feedback import Feedback
from client_service.feedback.grouped import Grouped
from client_service.feedback.messages import InteractionIn, InteractionsIn, ItemIn
from client_service.feedback.overlay import Overlay
from client_service.feedback.store import FeedbackStore
from client_service.settings import ClientSettings
from client_service.shard import read_shard
from shared.errors import ConflictError, FederationError, UnavailableError


class Slow:
    """Work that waits until it is let, and then squares; 13 is refused, and everything where a 99 is among it."""

    def __init__(self) -> None:
        self.begun, self.let = threading.Event(), threading.Event()
        self.groups: list[list[int]] = []

    def __call__(self, asked: Sequence[int]) -> list[int | FederationError]:
        self.groups.append(list(asked))
        self.begun.set()
        assert self.let.wait(30.0)
        if 99 in asked:
            raise UnavailableError("the disk refuses")
        return [ConflictError("unlucky") if one == 13 else one * one for one in asked]


def ask_while_busy(work: Slow, *numbers: int) -> list[int | str]:
    """What each caller gets, all of whom come while the work for 1 goes on."""
    grouped = Grouped(work, 3)

    def ask(number: int) -> int | str:
        try:
            return grouped.ask(number)
        except FederationError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(ask, 1)
        assert work.begun.wait(30.0)
        others = []
        for number in numbers:
            others.append(pool.submit(ask, number))
            while len(grouped._waiting) < len(others):
                pass
        work.let.set()
        assert first.result() == 1
        return [one.result() for one in others]


def test_all_who_have_come_meanwhile_are_served_together_in_their_order_and_so_many_at_a_time() -> None:
    work = Slow()
    assert ask_while_busy(work, 2, 3, 4, 5) == [4, 9, 16, 25]
    assert work.groups == [[1], [2, 3, 4], [5]]


def test_an_error_is_its_own_caller_s_and_a_failure_everybody_s() -> None:
    assert ask_while_busy(Slow(), 2, 13, 3) == [4, "unlucky", 9]
    assert ask_while_busy(Slow(), 2, 99, 3) == ["the disk refuses"] * 3


@pytest.fixture
def feedback(settings: ClientSettings) -> Feedback:
    settings.state_directory.mkdir(parents=True)
    store = FeedbackStore(settings.state_directory, most=4)
    return Feedback(store, Overlay(read_shard(settings.shard), store), settings.shard)


def test_batches_of_one_group_share_events_and_room(feedback: Feedback) -> None:
    def batch(*events: str) -> InteractionsIn:
        told = (InteractionIn(event=one, user=one, item="item-00", time=None, rating=None) for one in events)
        return InteractionsIn(interactions=tuple(told))

    found = feedback._take_all([batch("a", "b"), batch("b", "c"), batch("d", "e"), batch("d")])
    assert [one if isinstance(one, FederationError) else (one.accepted, one.repeated) for one in found[:2]] == [
        (2, 0),
        (1, 1),
    ]
    assert isinstance(found[2], ConflictError) and not isinstance(found[3], FederationError)
    assert [one.user for one in feedback.store.interactions()] == ["a", "b", "c", "d"]
    assert all(feedback.overlay.of(user) is not None for user in "abcd") and feedback.overlay.of("e") is None
    feedback.close()


def test_of_an_item_that_is_told_twice_in_a_group_the_last_counts(feedback: Feedback) -> None:
    told = [("item-00", ItemIn(title=title)) for title in ("first", "second")]
    feedback._put_all([*told, ("item-01", ItemIn(hidden=True))])
    assert feedback.overlay.titles is not None and feedback.overlay.titles[0] == "second"
    assert feedback.store.read_all()[0].items["item-00"].title == "second"
    assert isinstance(feedback._put_all([(f"new-{n}", ItemIn()) for n in range(3)])[-1], ConflictError)
    feedback.close()
