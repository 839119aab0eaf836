"""Work in pieces: the same whoever computes it, and ended by the first error."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import shared.cores
from shared.cores import map_in_threads
from tests.support.questions import LONGEST_SECONDS


@pytest.mark.parametrize("cores", [1, 2, 5])
def test_pieces_come_in_their_order_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(shared.cores, "available_cores", lambda: cores)
    assert map_in_threads(lambda piece: piece**2, range(20)) == [piece**2 for piece in range(20)]
    assert map_in_threads(len, []) == []


def test_with_two_cores_two_pieces_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.cores, "available_cores", lambda: 2)
    meeting = threading.Barrier(2)
    assert sorted(map_in_threads(lambda _: meeting.wait(timeout=LONGEST_SECONDS), range(2))) == [0, 1]


def test_the_first_error_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later pieces wait until the pool is shut down, so that how fast the threads are decides nothing."""
    begun, ended = list[int](), threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            ended.set()
            super().shutdown(wait=wait)

    def fail(piece: int) -> None:
        begun.append(piece)
        if piece > 0:
            assert ended.wait(LONGEST_SECONDS)
        raise ValueError(piece)

    monkeypatch.setattr(shared.cores, "available_cores", lambda: 2)
    monkeypatch.setattr(shared.cores, "ThreadPoolExecutor", Pool)
    with pytest.raises(ValueError, match="0"):
        map_in_threads(fail, range(1000))
    assert len(begun) <= 3
