"""What a command is at -> progress on stderr: a bar on a terminal, without one plain lines at intervals.

Whoever counts opens `count_bar`, whoever cannot count `step`. Within a command of `lpsfed` both show themselves, and
none does with --quiet or --json; a program that calls the same functions sees no step.
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
HEARTBEAT_SECONDS = 4.0  # before a command that tells nothing is said to go on
TICK_SECONDS = 0.5  # between two looks at the clock

Describe = Callable[[], str]
Clock = Callable[[], float]


@dataclass
class Visibility:
    """What a command may show now.

    in_command: a command runs, so that its steps are shown. last_line_at: time of the last line of progress. bars:
    number of bars that are open.
    """

    in_command: bool = False
    quiet: bool = False
    last_line_at: float = field(default_factory=time.monotonic)
    bars: int = 0

    @property
    def show_steps(self) -> bool:
        """Whether work that nobody has asked to show is shown."""
        return self.in_command and not self.quiet


visibility = Visibility()


@contextmanager
def command_progress() -> Iterator[None]:
    """While a command runs, its steps are shown."""
    global visibility
    before, visibility = visibility, Visibility(in_command=True)
    try:
        yield
    finally:
        visibility = before


@contextmanager
def heartbeat(name: str) -> Iterator[None]:
    """Tell from time to time that this command goes on, where nothing else does."""
    with _run_ticker(Heartbeat(name).look):
        yield


def can_show_bars() -> bool:
    """Whether a bar would be seen."""
    return ERR.is_interactive and not visibility.quiet


def hide_progress() -> None:
    """Show no progress until this command's end."""
    visibility.quiet = True


def print_on_stderr(line: str) -> None:
    """A line as it is."""
    ERR.print(line, soft_wrap=True)


def print_progress(line: str) -> None:
    """A line of progress, where steps are shown."""
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

    def look(self) -> None:
        """To be called every now and then."""
        now, last_line_at = self._clock(), visibility.last_line_at
        if last_line_at > self._began:
            self._due = max(self._due, last_line_at + LINE_SECONDS)
        if visibility.bars == 0 and now >= self._due:
            self._due = now + LINE_SECONDS
            self._tell(f"{self._name}: still at work after {now - self._began:.0f} s")


class ProgressLines:
    """Tells where a piece of work stands: first after FIRST_SECONDS, then every LINE_SECONDS, and once at its end."""

    def __init__(self, describe: Describe, tell: Callable[[str], None], clock: Clock = time.monotonic) -> None:
        self._describe, self._tell, self._clock = describe, tell, clock
        self._began = clock()
        self._due = self._began + FIRST_SECONDS

    def look(self) -> None:
        """To be called every now and then, from whichever thread."""
        if (now := self._clock()) >= self._due:
            self._due = now + LINE_SECONDS
            self._print_line(now)

    def end(self) -> None:
        """The last line, of work that was worth a line."""
        if (now := self._clock()) - self._began >= FIRST_SECONDS:
            self._print_line(now)

    def _print_line(self, now: float) -> None:
        visibility.last_line_at = now
        self._tell(f"{as_one_line(self._describe())}, {now - self._began:.0f} s")


@contextmanager
def _run_ticker(look: Callable[[], None]) -> Iterator[None]:
    """Call `look` every TICK_SECONDS, in a thread that ends with what is within."""
    over = threading.Event()

    def tick() -> None:
        while not over.wait(TICK_SECONDS):
            look()

    thread = threading.Thread(target=tick, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def show_work(bar: Progress, describe: Describe, *, shown: bool) -> Iterator[None]:
    """Show work that may take long: on a terminal by this bar, else by lines of `describe`. Work within other work that
    is shown, or in another thread, is not."""
    if not shown or visibility.quiet or visibility.bars or not _is_main_thread():
        yield
    elif ERR.is_interactive:
        with pause_heartbeat(), bar:
            yield
    else:
        lines = ProgressLines(describe, print_on_stderr)
        with pause_heartbeat(), _run_ticker(lines.look):
            yield
        lines.end()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def pause_heartbeat() -> Iterator[None]:
    """While something else tells where a command stands."""
    mine = visibility
    mine.bars += 1
    try:
        yield
    finally:
        mine.bars -= 1
        mine.last_line_at = time.monotonic()


@contextmanager
def step(what: str) -> Iterator[None]:
    """Show work whose end nobody knows, where a command does it."""
    words = PlainTextColumn(lambda task: task.description)
    bar = Progress(SpinnerColumn(), words, TimeElapsedColumn(), console=ERR, transient=True)
    bar.add_task(what, total=None)
    with show_work(bar, lambda: what, shown=visibility.show_steps):
        yield


@contextmanager
def count_bar(what: str, total: int, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show how many of so many like things are done; what is yielded is called after each, with words about it."""
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
    """A task's words as they are: a problem that is told there may be another's."""

    def __init__(self, words: Callable[[Task], str]) -> None:
        super().__init__()
        self._words = words

    def render(self, task: Task) -> Text:
        return Text(as_one_line(self._words(task)))


def make_bar() -> Progress:
    """Bars on stderr, so that stdout stays for results. A task has a field `phase`."""
    columns = (
        PlainTextColumn(lambda task: task.description),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        PlainTextColumn(lambda task: str(task.fields["phase"])),
    )
    return Progress(*columns, console=ERR)
