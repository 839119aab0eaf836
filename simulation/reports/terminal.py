"""Progress bars, lines and plain tables of a run for a terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from audit.terminal import LiteralConsole, as_one_line
from shared.words import count_noun
from simulation.progress import (
    ERR,
    can_show_bars,
    count_bar,
    make_bar,
    pause_heartbeat,
    print_on_stderr,
    print_progress,
    show_work,
)

if TYPE_CHECKING:
    from client_service.federation.messages import StatusOut
    from shared.protocol.schemas import RunHistoryOut
    from simulation.experiments.federation import Observe
    from simulation.experiments.federation import Progress as RunProgress

__all__ = ["ERR", "OUT", "count_bar", "print_on_stderr"]  # what commands print with, from one place

OUT = LiteralConsole()
CHANGE_SECONDS = 30.0  # between two lines about a run in which something changes
QUIET_SECONDS = 120.0  # between two lines about a run without news
BETWEEN = ("waiting", "finished", "evaluating")  # phases in which the round named is done


@contextmanager
def run_bars(names: tuple[str, ...], rounds: int, *, shown: bool) -> Iterator[Observe]:
    """Shows a progress bar a client; without a terminal, lines on all clients.

    A bar has the rounds done, the phase, time passed and left.
    """
    from shared.method.declaration import TRAINING
    from shared.sums import describe_part

    bars, phases, where = make_bar(), dict.fromkeys(names, "starting"), f"training: 0 of {count_noun(rounds, 'round')}"
    tasks = {name: bars.add_task(name, total=rounds, phase=phases[name]) for name in names}

    def update_bars(seen: RunProgress) -> None:
        nonlocal where
        what = "training" if seen.part == TRAINING else describe_part(seen.part)
        done = {name: min(rounds_done(status), seen.rounds) for name, status in seen.statuses.items()}
        for name, status in seen.statuses.items():
            phases[name] = status.problem or status.phase
            bars.update(tasks[name], completed=done[name], total=seen.rounds, phase=phases[name])
        where = f"{what}: {min(done.values(), default=0)} of {count_noun(seen.rounds, 'round')}"

    with show_work(bars, lambda: f"{where} ({_count_phases(phases.values())})", shown=shown):
        yield update_bars


def _count_phases(phases: Collection[str]) -> str:
    """Describes how many clients are in each phase."""
    return ", ".join(f"{count_noun(count, 'client')} {phase}" for phase, count in sorted(Counter(phases).items()))


def rounds_done(status: StatusOut) -> int:
    """Computes how many rounds a client has finished."""
    return max(0, status.round - (status.phase not in BETWEEN))


@contextmanager
def round_lines(*, shown: bool) -> Iterator[Callable[[RunHistoryOut], None]]:
    """Prints a line for each closed round of a run, and one for missing clients.

    `StatusSchedule` decides when. On a terminal a bar beneath them shows the same at any time.
    """
    from shared.method.declaration import TRAINING
    from shared.sums import describe_part
    from simulation.operating.operator import describe_round, describe_run

    schedule, bar, printed, run = StatusSchedule(), make_bar(), 0, ""
    task = bar.add_task("run", total=None, phase="starting")

    def print_rounds(history: RunHistoryOut) -> None:
        nonlocal printed, run
        if history.run != run:
            printed, run = 0, history.run
        closed = [entry for entry in history.rounds if entry.closed_at is not None]
        for done in closed[printed:]:
            what = "" if history.request.part == TRAINING else f", {describe_part(history.request.part)}"
            _tell_where(shown, f"{history.run}{what}, {describe_round(history.request, done)}")
        if schedule.is_due(history, len(closed) > printed):
            _tell_where(shown, describe_run(history))
        printed = len(closed)
        bar.update(task, description=history.run, completed=printed, total=history.request.rounds)
        bar.update(task, phase=_describe_missing(history))

    with pause_heartbeat(), bar if shown and can_show_bars() else nullcontext():
        yield print_rounds


def _tell_where(shown: bool, line: str) -> None:
    if shown:
        print_progress(line)


def _describe_missing(history: RunHistoryOut) -> str:
    """Describes the phase, and the clients missing in it."""
    waited_for = history.missing if history.phase in ("waiting", "open") else ()
    return f"{history.phase}; missing: {', '.join(waited_for)}" if waited_for else history.phase


class StatusSchedule:
    """Schedule of status lines.

    A line is due at once while the run waits for clients; then after CHANGE_SECONDS if something has changed, and after
    QUIET_SECONDS without a line in any case.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since = clock, clock()
        self._printed: tuple[object, ...] | None = None

    def is_due(self, history: RunHistoryOut, spoken: bool) -> bool:
        """Tells whether to print now; called once for each look at the run.

        spoken: another line was printed for this look.
        """
        now, state = self._clock(), (history.phase, history.enrolled, history.missing)
        first = history.phase == "waiting" and (self._printed is None or self._printed[0] != "waiting")
        passed = now - self._since
        changed = state != self._printed and passed >= CHANGE_SECONDS
        late = passed >= QUIET_SECONDS
        due = first or (history.phase in ("waiting", "open") and not spoken and (changed or late))
        if spoken or due:
            self._since = now
        if due:
            self._printed = state
        return due


def word_table(*names: str, whole: Collection[str] = ()) -> Table:
    """Builds a table of words, which are folded in a narrow terminal.

    The columns in `whole` are never folded.
    """
    table = Table(box=box.SIMPLE, padding=0, collapse_padding=True, pad_edge=False)
    for name in names:
        table.add_column(name, overflow="fold", no_wrap=name in whole)
    return table


def figure_table(title: str, first: str, *others: str, caption: str | None = None) -> Table:
    """Builds a table of figures for a terminal of 80 columns.

    Names that are too long are folded, and numbers are not.
    """
    table = Table(title=title, caption=caption, box=box.SIMPLE, padding=0, collapse_padding=True, pad_edge=False)
    table.add_column(first, overflow="fold")
    for column in others:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def partition_table(summary: Mapping[str, Any]) -> Table:
    """Renders sizes of every client of a partition, and its share of training edges."""
    title = f"{summary['data']}, divided by {summary['method']} (partition {summary['partition']})"
    kept = f"{100 * summary['edges_kept']:.1f} % of training edges kept"
    kept, counted = summary.get("caption", kept), summary.get("counted", "users")
    shown = summary.get("shown", ("items", "train", "valid", "test"))
    table = figure_table(title, "client", counted, *shown, caption=kept)
    for client in summary["clients"]:
        table.add_row(client["client"], *(f"{client[key]:,}" for key in ("users", *shown)))
    return table


def _label_table(title: str, answer: Mapping[str, Any]) -> Table:
    table = figure_table(as_one_line(title), "label", "probability")
    for label, probability in sorted(answer["probabilities"].items(), key=lambda one: -one[1]):
        table.add_row(as_one_line(label), f"{probability:.3f}")
    table.add_section()
    for neighbour in answer.get("neighbours", ()):
        table.add_row(f"by neighbour {as_one_line(neighbour['node'])}", f"{neighbour['contribution']:+.3f}")
    return table


def answer_table(title: str, answer: Mapping[str, Any]) -> Table:
    """Renders recommendations, or a node's label with its most weighing neighbours."""
    if "label" in answer:
        return _label_table(title, answer)
    reasons = any(item.get("reason") for item in answer["items"])
    table = figure_table(as_one_line(title), "item", "title", "score", *(["reason"] if reasons else []))
    table.columns[1].no_wrap = False
    for item in answer["items"]:
        reason = [item.get("reason") or ""] if reasons else []
        table.add_row(as_one_line(item["item"]), as_one_line(item.get("title") or ""), f"{item['score']:.3f}", *reason)
    return table
