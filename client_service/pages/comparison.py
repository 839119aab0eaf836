"""What runs ended with -> the page's first chart (popular items, other floors, the silo alone, federated), and a table
of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from client_service.learning.quality import MeasureLabel
from client_service.pages.nouns import USERS, Nouns
from client_service.schemas import ComparisonOut, EarlierRun, FigureOut, GroupOut, QualityOut
from client_service.worth.comparison import EASE_SIDE
from shared.web.intervals import IntervalChart, IntervalGroup
from shared.web.pages import figure
from shared.words import count_noun

NAMES = ("popular items", "this silo alone", "federated, as served")
FLOORS = {"lowpass": "low-pass filter", "ridge": "ridge filter", "ease": "EASE"}
REFITTED = (
    "The figures were measured on held-out data. Then the model was fitted again on all data of the silo, "
    "with the same choices, and that one answers. "
)
COLOURS = {NAMES[0]: 4, "low-pass filter": 3, "ridge filter": 0, "EASE": 1, NAMES[1]: 5, NAMES[2]: 2}
TOO_DEAR = {"ease": f"EASE is left out: beyond {EASE_SIDE:,} users and as many items it takes too long."}


@dataclass(frozen=True)
class RunsTable:
    """The figures on test items of each run that has ended, oldest first, below what the silo has alone.

    rows: who, the figures in the order of the titles, of how many users. None: nothing to hold beside one another yet.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...], str], ...]


def runs_table(quality: QualityOut, labels: Sequence[MeasureLabel], nouns: Nouns = USERS) -> RunsTable | None:
    """This silo alone, every earlier run, and the run at hand once it has ended; None without an earlier run."""
    if not quality.earlier:
        return None
    known = [(one.run, one.test, one.test_users) for one in (*quality.earlier, *_ended_run(quality))]
    if quality.comparison is not None and quality.comparison.groups:
        whole = quality.comparison.groups[0]
        known.insert(0, (NAMES[1], {quality.comparison.measure: whole.alone.mean}, whole.users))
    return RunsTable(tuple(label.title for label in labels), tuple(_run_row(*one, labels, nouns) for one in known))


def _run_row(
    who: str, test: Mapping[str, float], users: int, labels: Sequence[MeasureLabel], nouns: Nouns
) -> tuple[str, tuple[str, ...], str]:
    figures = tuple(figure(test.get(label.key) if users else None) for label in labels)
    return who, figures, count_noun(users, nouns.judged)


def _ended_run(quality: QualityOut) -> tuple[EarlierRun, ...]:
    if quality.run is None or quality.test is None:
        return ()
    return (EarlierRun(run=f"{quality.run}, the last", test=quality.test, test_users=quality.test_users),)


def comparison_chart(quality: QualityOut, nouns: Nouns = USERS) -> IntervalChart:
    """What the run was worth to this silo, overall, by its users' activity and by how frequent items are."""
    found = quality.comparison
    groups = () if found is None else tuple(_interval_group(group, nouns) for group in found.groups)
    floors = () if found is None or not found.groups else tuple(FLOORS[name] for name in found.groups[0].floors)
    names = (NAMES[0], *floors, *NAMES[1:])
    said = "Appears when a run has ended." if not groups else _describe(quality, groups, nouns)
    notices = () if found is None else worth_notices(found, nouns)
    return IntervalChart(
        "comparison",
        "Popular items, this silo alone, and with the federation",
        said,
        names,
        groups,
        "federated less alone",
        notices,
        tuple(COLOURS[name] for name in names),
    )


def worth_notices(found: ComparisonOut, nouns: Nouns = USERS) -> tuple[str, ...]:
    """What nobody may overlook in these figures, in plain words."""
    few = f"Only {count_noun(found.users, nouns.judged)} could be judged: these figures are mostly chance."
    gain = found.validation_gain
    worse = ""
    if gain is not None and gain.mean < 0:
        sure = "" if gain.high < 0 else ", which may be chance"
        worse = (
            f"On validation items what is served is worse than what this silo has alone, by {figure(-gain.mean)} "
            f"({_range(gain)}){sure}. This run has brought the silo nothing."
        )
    return tuple(one for one in (few if found.few else "", worse) if one)


def _describe(quality: QualityOut, groups: tuple[IntervalGroup, ...], nouns: Nouns) -> str:
    assert quality.comparison is not None, "groups come from a comparison"
    found, whole = quality.comparison, groups[0]
    floors = "Filters and EASE are closed forms that need no training either. " if found.groups[0].floors else ""
    dear = "".join(f"{TOO_DEAR[name]} " for name in found.left_out)
    return (
        f"{found.measure.upper()} of {quality.run} on test items, a mean over the silo’s {nouns.judged}s with its "
        f"95 % interval. Over {whole.note} federated less alone is {whole.more}. {floors}{dear}"
        f"{REFITTED if quality.refitted else ''}None of these figures leaves the silo."
    )


def _interval_group(group: GroupOut, nouns: Nouns) -> IntervalGroup:
    shown = (group.popularity, *group.floors.values(), group.alone, group.federated)
    figures = tuple((one.mean, one.low, one.high) for one in shown)
    more = f"{group.gain.mean:+.4f} ({_range(group.gain)})"
    return IntervalGroup(group.name, count_noun(group.users, nouns.judged), figures, more)


def _range(found: FigureOut) -> str:
    return f"{found.low:+.4f} to {found.high:+.4f}"
