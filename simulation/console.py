"""Where a run stands -> what a person sees in a terminal: bars, lines, and plain tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from audit.terminal import LiteralConsole, as_one_line
from client_service.schemas import StatusOut
from shared.protocol.schemas import RunHistoryOut
from simulation.federation import Observe
from simulation.federation import Progress as RunProgress
from simulation.operate import describe_round, describe_run
from simulation.operator_calls import ignore_line

OUT = LiteralConsole()
ERR = LiteralConsole(stderr=True)
QUIET_SECONDS = 30.0  # without a word about a run that goes on
BETWEEN = ("waiting", "finished", "evaluating")  # phases in which the round named is done


@contextmanager
def run_bars(names: tuple[str, ...], rounds: int, *, shown: bool) -> Iterator[Observe]:
    """A bar a client: rounds done, phase, time passed and left. On stderr, so that stdout stays for results."""
    with _make_progress(shown) as progress:
        tasks = {name: progress.add_task(name, total=rounds, phase="starting") for name in names}

        def update_bars(seen: RunProgress) -> None:
            what = "common basis: " if seen.part == "basis" else ""
            for name, status in seen.statuses.items():
                done = rounds_done(status)
                phase = status.problem or f"{what}{status.phase}"
                progress.update(tasks[name], completed=min(done, seen.rounds), total=seen.rounds, phase=phase)

        yield update_bars


def rounds_done(status: StatusOut) -> int:
    """How many rounds a client is through with."""
    return max(0, status.round - (status.phase not in BETWEEN))


def tell_on_stderr(line: str) -> None:
    """A line of progress, as it is."""
    ERR.print(line, soft_wrap=True)


@contextmanager
def round_lines(*, shown: bool) -> Iterator[Callable[[RunHistoryOut], None]]:
    """Print a line for each round that has closed, and one that names the missing clients: at once while a run waits
    for clients, else after QUIET_SECONDS without another line. Beneath them a bar where there is a terminal."""
    tell, quiet = tell_on_stderr if shown else ignore_line, Quiet()
    with _make_progress(shown and ERR.is_terminal) as progress:
        task, printed = progress.add_task("run", total=None, phase="starting"), 0

        def print_rounds(history: RunHistoryOut) -> None:
            nonlocal printed
            closed = [entry for entry in history.rounds if entry.closed_at is not None]
            for done in closed[printed:]:
                what = ", common basis" if history.request.part == "basis" else ""
                tell(f"{history.run}{what}, {describe_round(history.request, done)}")
            if quiet.is_over(history, len(closed) > printed):
                tell(describe_run(history))
            printed = len(closed)
            progress.update(task, description=history.run, completed=printed, total=history.request.rounds)
            progress.update(task, phase=history.phase)

        yield print_rounds


class Quiet:
    """Decides when to print again where a run stands, so that a viewer sees that it goes on and who is missing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._waited_for: tuple[str, ...] | None = None

    def is_over(self, history: RunHistoryOut, spoken: bool) -> bool:
        """Whether to print now; to be called once for each look at the run. `spoken`: another line was printed for this
        look."""
        waited_for = history.missing if history.phase == "waiting" else None
        news = waited_for is not None and waited_for != self._waited_for
        late = history.phase in ("waiting", "open") and self._clock() - self._since >= QUIET_SECONDS
        self._waited_for = waited_for
        if spoken or news or late:
            self._since = self._clock()
        return news or (late and not spoken)


@contextmanager
def count_bar(what: str, total: int, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """One bar for a number of like things."""
    with _make_progress(shown) as progress:
        task = progress.add_task(what, total=total, phase="")
        yield lambda done: progress.update(task, advance=1, phase=done)


class WordColumn(ProgressColumn):
    """A task's words as they are: a problem that is told there may be another's."""

    def __init__(self, words: Callable[[Task], str]) -> None:
        super().__init__()
        self._words = words

    def render(self, task: Task) -> Text:
        return Text(as_one_line(self._words(task)))


def _make_progress(shown: bool) -> Progress:
    columns = (
        WordColumn(lambda task: task.description),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        WordColumn(lambda task: str(task.fields["phase"])),
    )
    return Progress(*columns, console=ERR, disable=not shown)


def word_table(*names: str, whole: Collection[str] = ()) -> Table:
    """A table of words, which are folded where the terminal is narrow. The columns in `whole` are never folded."""
    table = Table(box=box.SIMPLE, padding=0, collapse_padding=True, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name in whole)
    return table


def figure_table(title: str, first: str, *others: str, caption: str | None = None) -> Table:
    """Narrow enough for a terminal of 80 columns. Where names are too long they are folded, and numbers stay whole."""
    table = Table(title=title, caption=caption, box=box.SIMPLE, padding=0, collapse_padding=True, pad_edge=False)
    table.add_column(first, overflow="fold")
    for column in others:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def answer_table(said: str, answer: Mapping[str, Any]) -> Table:
    """A list of recommendations."""
    table = figure_table(as_one_line(said), "item", "title", "score")
    table.columns[1].no_wrap = False
    for item in answer["items"]:
        table.add_row(as_one_line(item["item"]), as_one_line(item.get("title") or ""), f"{item['score']:.3f}")
    return table
