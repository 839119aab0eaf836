"""Progress of a command on stderr: bars on a terminal, else plain lines at intervals.

`count_bar` is for work with a known number of parts, `step` for other work. Within a command of `lpsfed` both show
themselves, unless --quiet or --json is given; a program that calls the same functions sees no step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from audit.terminal import LiteralConsole, as_one_line

ERR = LiteralConsole(stderr=True)
FIRST_SECONDS = 2.0  # before the first line of a piece of work: what is over sooner needs none
LINE_SECONDS = 10.0  # between two lines
HEARTBEAT_SECONDS = 4.0  # before the first line of a command that shows nothing
TICK_SECONDS = 0.5  # between two looks at the clock

Describe = Callable[[], str]
Clock = Callable[[], float]


@dataclass
class Visibility:
    """State of progress: which output is shown now.

    in_command: a command runs, so that its steps are shown. last_line_at: time of the last line of progress. bars:
    number of bars that are open.
    """

    in_command: bool = False
    quiet: bool = False
    last_line_at: float = field(default_factory=time.monotonic)
    bars: int = 0

    @property
    def show_steps(self) -> bool:
        """Whether steps are shown."""
        return self.in_command and not self.quiet


visibility = Visibility()


@contextmanager
def command_progress() -> Iterator[None]:
    """Shows steps while a command runs."""
    global visibility
    before, visibility = visibility, Visibility(in_command=True)
    try:
        yield
    finally:
        visibility = before


@contextmanager
def heartbeat(name: str) -> Iterator[None]:
    """Prints at intervals that the command still runs, while nothing else is printed."""
    with _run_ticker(Heartbeat(name).print_if_due):
        yield


def can_show_bars() -> bool:
    """Tells whether stderr is a terminal that shows bars."""
    return ERR.is_interactive and not visibility.quiet


def hide_progress() -> None:
    """Hides progress until this command ends."""
    visibility.quiet = True


def print_on_stderr(line: str) -> None:
    """Prints a line on stderr as it is."""
    ERR.print(line, soft_wrap=True)


def print_progress(line: str) -> None:
    """Prints a line of progress where steps are shown."""
    if visibility.show_steps:
        visibility.last_line_at = time.monotonic()
        print_on_stderr(line)


class Heartbeat:
    """Lines that say that a command still runs.

    The first comes after HEARTBEAT_SECONDS, others when no line or bar was shown for LINE_SECONDS.
    """

    def __init__(self, name: str, tell: Callable[[str], None] = print_progress, clock: Clock = time.monotonic) -> None:
        self._name, self._tell, self._clock = name, tell, clock
        self._began = clock()
        self._due = self._began + HEARTBEAT_SECONDS

    def print_if_due(self) -> None:
        """Prints the line when it is due. Called at intervals."""
        now, last_line_at = self._clock(), visibility.last_line_at
        if last_line_at > self._began:
            self._due = max(self._due, last_line_at + LINE_SECONDS)
        if visibility.bars == 0 and now >= self._due:
            self._due = now + LINE_SECONDS
            self._tell(f"{self._name}: still running after {now - self._began:.0f} s")


class ProgressLines:
    """Lines that say how far a piece of work is.

    The first comes after FIRST_SECONDS, then one every LINE_SECONDS and one at the end.
    """

    def __init__(self, describe: Describe, tell: Callable[[str], None], clock: Clock = time.monotonic) -> None:
        self._describe, self._tell, self._clock = describe, tell, clock
        self._began = clock()
        self._due = self._began + FIRST_SECONDS

    def print_if_due(self) -> None:
        """Prints the line when it is due. Called at intervals, from any thread."""
        if (now := self._clock()) >= self._due:
            self._due = now + LINE_SECONDS
            self._print_line(now)

    def end(self) -> None:
        """Prints the last line, where the work was long enough for a first one."""
        if (now := self._clock()) - self._began >= FIRST_SECONDS:
            self._print_line(now)

    def _print_line(self, now: float) -> None:
        visibility.last_line_at = now
        self._tell(f"{as_one_line(self._describe())}, {now - self._began:.0f} s")


@contextmanager
def _run_ticker(action: Callable[[], None]) -> Iterator[None]:
    """Calls `action` every TICK_SECONDS in a thread that ends with the block."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(TICK_SECONDS):
            action()

    thread = threading.Thread(target=tick, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def show_work(bar: Progress, describe: Describe, *, shown: bool) -> Iterator[None]:
    """Shows long work: on a terminal by this bar, else by lines of `describe`.

    Work within other shown work, or in another thread, is not shown.
    """
    if not shown or visibility.quiet or visibility.bars or not _is_main_thread():
        yield
    elif ERR.is_interactive:
        with pause_heartbeat(), bar:
            yield
    else:
        lines = ProgressLines(describe, print_on_stderr)
        with pause_heartbeat(), _run_ticker(lines.print_if_due):
            yield
        lines.end()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def pause_heartbeat() -> Iterator[None]:
    """Silences the heartbeat while something else shows progress."""
    mine = visibility
    mine.bars += 1
    try:
        yield
    finally:
        mine.bars -= 1
        mine.last_line_at = time.monotonic()


@contextmanager
def step(what: str) -> Iterator[None]:
    """Shows work of unknown length while a command does it."""
    words = PlainTextColumn(lambda task: task.description)
    bar = Progress(SpinnerColumn(), words, TimeElapsedColumn(), console=ERR, transient=True)
    bar.add_task(what, total=None)
    with show_work(bar, lambda: what, shown=visibility.show_steps):
        yield


@contextmanager
def count_bar(what: str, total: int, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """Shows how many of `total` parts are done.

    Yields a function to call after each part, with words about it.
    """
    bar = make_bar()
    task, done, words = bar.add_task(what, total=total, phase=""), 0, ""

    def describe() -> str:
        return f"{what}: {done:,} of {total:,}" + (f" ({words})" if words else "")

    def advance(about: str) -> None:
        nonlocal done, words
        done, words = done + 1, about
        bar.update(task, advance=1, phase=about)

    with show_work(bar, describe, shown=shown):
        yield advance


class PlainTextColumn(ProgressColumn):
    """Column of text without markup: another machine's words may be shown in it."""

    def __init__(self, words: Callable[[Task], str]) -> None:
        super().__init__()
        self._words = words

    def render(self, task: Task) -> Text:
        return Text(as_one_line(self._words(task)))


def make_bar() -> Progress:
    """Returns bars on stderr, which leaves stdout to results. A task has a field `phase`."""
    columns = (
        PlainTextColumn(lambda task: task.description),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        PlainTextColumn(lambda task: str(task.fields["phase"])),
    )
    return Progress(*columns, console=ERR)
