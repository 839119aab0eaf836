"""Progress bars, lines and plain tables of a run for a terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
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
from simulation.reports.averages import MOST_ROWS, quantile_figures

if TYPE_CHECKING:
    from client_service.federation.messages import StatusOut
    from shared.protocol.schemas import RunHistoryOut
    from simulation.experiments.federation import Observe
    from simulation.experiments.federation import Progress as RunProgress

__all__ = ["ERR", "OUT", "count_bar", "print_on_stderr"]  # what commands print with, from one place

OUT = LiteralConsole()
CHANGE_SECONDS = 30.0  # between two lines about a run in which something changes
QUIET_SECONDS = 120.0  # between two lines about a run without news
BAR_SECONDS = 0.1  # between two computations of the bars
MOST_BARS = 20  # more clients share one
BETWEEN = ("waiting", "finished", "evaluating")  # phases in which the round named is done


@contextmanager
def run_bars(names: tuple[str, ...], rounds: int, *, shown: bool) -> Iterator[Observe]:
    """Shows a progress bar a client; without a terminal, lines on all clients.

    Many clients share one bar.

    A bar has the rounds done, the phase, time passed and left. It is drawn at most every BAR_SECONDS, because a look
    at all clients for each client's reply grows with the square of their number.
    """
    from shared.method.declaration import TRAINING
    from shared.sums import describe_part

    bars, together = make_bar(), len(names) > MOST_BARS
    latest: RunProgress | None = None
    due = 0.0
    shown_names = (count_noun(len(names), "client"),) if together else names
    tasks = {name: bars.add_task(name, total=rounds, phase="starting") for name in shown_names}

    def describe() -> str:
        part, total = (TRAINING, rounds) if latest is None else (latest.part, latest.rounds)
        what = "training" if part == TRAINING else describe_part(part)
        done = _rounds_of_all(names, latest)
        words = _count_phases(phase for _, phase in done.values())
        return f"{what}: {min((one for one, _ in done.values()), default=0)} of {count_noun(total, 'round')} ({words})"

    def draw_bars() -> None:
        done = _rounds_of_all(names, latest)
        total = rounds if latest is None else latest.rounds
        if together:
            words = _count_phases(phase for _, phase in done.values())
            mean = sum(one for one, _ in done.values()) // max(1, len(done))
            done = {shown_names[0]: (mean, words)}
        for name, (completed, phase) in done.items():
            bars.update(tasks[name], completed=completed, total=total, phase=phase)

    def note_progress(seen: RunProgress) -> None:
        nonlocal latest, due
        latest, now = seen, time.monotonic()
        if now >= due:
            due = now + BAR_SECONDS
            draw_bars()

    with show_work(bars, describe, shown=shown):
        yield note_progress
        draw_bars()


def _rounds_of_all(names: Collection[str], seen: RunProgress | None) -> dict[str, tuple[int, str]]:
    """Returns each client's finished rounds, and its problem or phase.

    The statuses are copied first, because another thread may add one.
    """
    found = dict.fromkeys(names, (0, "starting"))
    if seen is not None:
        for name, status in dict(seen.statuses).items():
            found[name] = min(rounds_done(status), seen.rounds), status.problem or status.phase
    return found


def _count_phases(phases: Iterable[str]) -> str:
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
    """Renders sizes of every client of a partition, and its share of training edges.

    Of many clients it has the quantiles.
    """
    title = f"{summary['data']}, divided by {summary['method']} (partition {summary['partition']})"
    kept = f"{100 * summary['edges_kept']:.1f} % of training edges kept"
    kept, counted = summary.get("caption", kept), summary.get("counted", "users")
    shown = summary.get("shown", ("items", "train", "valid", "test"))
    table = figure_table(title, "client", counted, *shown, caption=kept)
    keys, clients = ("users", *shown), summary["clients"]
    if len(clients) > MOST_ROWS:
        for name, sizes in quantile_figures(keys, clients).items():
            table.add_row(f"{name} of {len(clients):,}", *(f"{sizes[key]:,.0f}" for key in keys))
        return table
    for client in clients:
        table.add_row(client["client"], *(f"{client[key]:,}" for key in keys))
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
