"""What a process no longer needs goes; what it keeps is not looked through again at each answer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from client_service.runtime.memory import return_free_memory


class Node:
    """Holds itself: only the collector of cycles frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_in_a_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("client_service.runtime.memory.gc", gc)
    yield
    gc.unfreeze()


def test_what_is_left_is_passed_over_by_the_collector() -> None:
    kept = Node()
    return_free_memory()
    assert gc.get_freeze_count() > 10_000
    assert not any(one is kept for generation in range(3) for one in gc.get_objects(generation))


def test_a_cycle_that_was_passed_over_goes_at_the_next_call() -> None:
    node = Node()
    seen = weakref.ref(node)
    return_free_memory()
    del node
    gc.collect()
    assert seen() is not None
    return_free_memory()
    assert seen() is None
