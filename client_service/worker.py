"""The thread in which a silo computes: one function after the other, whatever is asked of it at once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import ParamSpec, TypeVar

from client_service.device import pin_threads

Given = ParamSpec("Given")
Result = TypeVar("Result")


class TrainingWorker(ThreadPoolExecutor):
    """One thread with `threads` threads of linear algebra. `turns` is held while a function runs: silos that share a
    process share it, so that no more of them compute at once, and need memory for it, than it admits."""

    def __init__(self, threads: int, turns: AbstractContextManager[object]) -> None:
        super().__init__(1, "training", initializer=pin_threads, initargs=(threads,))
        self._turns = turns

    def submit(self, function: Callable[Given, Result], /, *args: Given.args, **kwargs: Given.kwargs) -> Future[Result]:
        """As of any executor; the function begins when it is this silo's turn."""
        return super().submit(self._run_in_turn, partial(function, *args, **kwargs))

    def _run_in_turn(self, function: Callable[[], Result]) -> Result:
        with self._turns:
            try:
                return function()
            except (Exception, KeyboardInterrupt, SystemExit) as error:
                if isinstance(error, StopIteration):  # no future can hold it: whoever waits would wait for ever
                    raise RuntimeError("expected a result, got StopIteration") from None
                raise
            except BaseException as error:  # a library's panic, which nobody above would count as an error
                raise RuntimeError(f"expected a result, got {type(error).__name__}") from None
