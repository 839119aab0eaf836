"""Silos in one process take turns at computing: no more of them at once than the process has turns."""

from contextlib import nullcontext
from threading import BoundedSemaphore, Event, Lock

import pytest

from client_service.runtime.workers import TrainingWorker
from tests.support.questions import LONGEST_SECONDS


class Crowd:
    """How many are inside at once, at most."""

    def __init__(self) -> None:
        self.lock, self.inside, self.most = Lock(), 0, 0
        self.gone = Event()

    def visit(self) -> None:
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        self.gone.wait(0.02)
        with self.lock:
            self.inside -= 1


@pytest.mark.parametrize("turns", [1, 2])
def test_no_more_silos_compute_at_once_than_there_are_turns(turns):
    crowd, shared = Crowd(), BoundedSemaphore(turns)
    workers = [TrainingWorker(1, shared) for _ in range(6)]
    for future in [worker.submit(crowd.visit) for worker in workers for _ in range(3)]:
        future.result(LONGEST_SECONDS)
    for worker in workers:
        worker.shutdown()
    assert crowd.most <= turns


def test_a_turn_is_given_back_by_a_function_that_fails():
    shared = BoundedSemaphore(1)
    with TrainingWorker(1, shared) as first, TrainingWorker(1, shared) as second:
        with pytest.raises(ZeroDivisionError):
            first.submit(lambda: 1 // 0).result(LONGEST_SECONDS)
        assert second.submit(max, 2, 3).result(LONGEST_SECONDS) == 3


def test_a_silo_by_itself_waits_for_nobody():
    with TrainingWorker(1, nullcontext()) as worker:
        assert worker.submit(pow, 2, 3).result(LONGEST_SECONDS) == 8
