"""Charts of the silo's page: quality by round, kernels, and comparison after runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from client_service.evaluation.metrics import MeasureLabel, find_title
from client_service.federation.messages import EarlierRun, QualityOut, SpectrumOut
from client_service.joining_value.comparison import EASE_SIDE
from client_service.joining_value.messages import ComparisonOut, FigureOut, GroupOut
from client_service.tasks.page_texts import USERS, Nouns
from client_service.tasks.task import Task
from shared.web.charts import Chart, IntervalChart, IntervalGroup, Line
from shared.words import count_noun, format_number


def draw_measures(quality: QualityOut, task: Task[Any, Any]) -> tuple[Chart, ...]:
    """Draws each measure on validation items, with the best round marked, and the loss."""
    return (*(_measure_chart(quality, task, name, label) for name, label in task.labels.items()), _loss_chart(quality))


def graph_charts(quality: QualityOut) -> tuple[Chart, ...]:
    """Draws the curves of a silo of nodes on validation nodes; none of another silo."""
    graph = quality.graph
    if graph is None:
        return ()
    found = []
    if graph.roc is not None:
        chance = Line("By chance", tuple((x, x) for x in graph.roc.x), dashed=True)
        line = Line("True positives", tuple(zip(graph.roc.x, graph.roc.y, strict=True)))
        text = "Validation nodes: share found by a threshold over share wrongly found. Higher is better."
        found.append(Chart("roc", "ROC curve", text, "false positives", "true positives", (line, chance), (0.0, 1.0)))
    if graph.reliability is not None:
        points = tuple(zip(graph.reliability.x, graph.reliability.y, strict=True))
        exact = Line("Calibrated", tuple((x, x) for x, _ in points), dashed=True)
        text = "Validation nodes by predicted probability, and the share that has the class."
        if graph.calibration_error is not None:
            text += f" Mean distance {format_number(graph.calibration_error)}."
        lines = (Line("Observed", points), exact)
        found.append(
            Chart("reliability", "Reliability", text, "predicted probability", "observed share", lines, (0.0, 1.0))
        )
    return tuple(found)


def describe_homophily(quality: QualityOut) -> str:
    """Describes homophily and classes of a silo of nodes; "" of another silo."""
    graph = quality.graph
    if graph is None:
        return ""
    classes = ", ".join(f"{name}: {count:,}" for name, count in graph.classes.items())
    text = f"Labelled nodes by class: {classes}. Answered by: {graph.answers}."
    if graph.edge_homophily is None:
        return f"No edge has two labelled ends. {text}"
    adjusted = "" if graph.adjusted_homophily is None else f", adjusted {format_number(graph.adjusted_homophily)}"
    return f"Homophily of edges {format_number(graph.edge_homophily)}{adjusted}. {text}"


def _loss_chart(quality: QualityOut) -> Chart:
    """Draws the training loss, with the end of the warm-up marked.

    After the warm-up it is another loss, because margins are part of it.
    """
    first = _first_margin(quality)
    text = "Mean over the batches of a round. Lower is better."
    if first is not None:
        text += (
            f" Before round {first} the warm-up fits the popularity tables. From then on the loss includes their"
            " margins: it can rise there although the model is no worse. Compare values within each part alone."
        )
    line = Line("Loss", tuple((one.round, one.loss) for one in quality.rounds if one.round > 0))
    mark = None if first is None else (float(first), "end of the warm-up")
    return Chart("loss", "Training loss", text, "round", "loss", (line,), mark=mark)


def _first_margin(quality: QualityOut) -> int | None:
    """Returns the first round whose loss has margins after a round without them."""
    trained = [one for one in quality.rounds if one.loss is not None]
    pairs = pairwise(trained)
    return next((after.round for before, after in pairs if after.with_margins and not before.with_margins), None)


def _measure_chart(quality: QualityOut, task: Task[Any, Any], name: str, label: MeasureLabel) -> Chart:
    best = quality.best_round
    points = tuple((one.round, one.values.get(name)) for one in quality.rounds)
    line = Line(label.title, points)
    lines: tuple[Line, ...] = (line,)
    trained = tuple(point for point in points if point[0] > 0)
    # From the start, which needs no training, a curve mostly falls: a line of its own says what training adds.
    if best and points[0][0] == 0 and len(trained) > 1:
        start = Line("start, before training", tuple((number, points[0][1]) for number, _ in trained), dashed=True)
        lines = (Line(label.title, trained), start)
    return Chart(
        key=name,
        title=line.name,
        description=_measure_text(quality, task.labels[quality.primary or task.primary].title, label, line),
        x="round",
        y="on validation items",
        lines=lines,
        mark=None if best is None else (best, f"best: round {best}" if best else "best: the start, before training"),
    )


def _measure_text(quality: QualityOut, primary: str, label: MeasureLabel, line: Line) -> str:
    best = next((value for number, value in line.points if number == quality.best_round), None)
    if best is None:
        return "Figures appear with the first run."
    text = f"{quality.run}: {format_number(best)} in round {quality.best_round}, the best by {primary}."
    if quality.best_round == 0:
        text = f"{quality.run}: {format_number(best)} at the start, before training; no later {primary} is better."
    if quality.valid_users == 0:
        text = f"{quality.run}: no validation items, so no round is judged and the start is served."
    if quality.test is None or not quality.test_users:
        return text
    return f"{text} On test items, read once at the end: {format_number(quality.test.get(label.key))}."


def draw_spectrum(spectrum: SpectrumOut) -> Chart:
    """Draws the silo's kernel beside the anchor's: rho compares both.

    Of the two only rho leaves the silo.
    """
    lines = (("This silo", spectrum.own), ("Anchor", spectrum.anchor))
    return Chart(
        key="spectrum",
        title="Spectrum beside the anchor’s",
        description=_describe_rho(spectrum),
        x="frequency, from the lowest",
        y="share of the sum",
        lines=tuple(Line(name, tuple(enumerate(values, start=1))) for name, values in lines),
        bounds=(0.0, None),
        digits=5,
    )


def _describe_rho(spectrum: SpectrumOut) -> str:
    if not spectrum.own:
        return "Appears in the first round whose strategy compares both kernels."
    rho = f"rho = {format_number(spectrum.rho)} in round {spectrum.round} of {spectrum.run}"
    return f"{rho}: the divergence of these two curves. Rho leaves the silo, its curve does not."


NAMES = ("popular items", "this silo alone", "federated, as served")
FLOORS = {
    "lowpass": "low-pass filter",
    "ridge": "ridge filter",
    "ease": "EASE",
    "own successors": "own counts of the last click",
    "transitions of all": "transitions of all silos",
}
REFITTED = (
    "The figures were measured on held-out data. Then the model was fitted again on all data of the silo, with the "
    "same choices; that model answers. "
)
COLOURS = {NAMES[0]: 4, "low-pass filter": 3, "ridge filter": 0, "EASE": 1, NAMES[1]: 5, NAMES[2]: 2}
COLOURS |= {"own counts of the last click": 0, "transitions of all silos": 1}
TOO_COSTLY = {"ease": f"EASE is left out: with more than {EASE_SIDE:,} users and items it takes too long."}


@dataclass(frozen=True)
class RunsTable:
    """Table of the test figures of all ended runs, oldest first, below the local model.

    rows: name, figures in the order of the titles, number of users.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...], str], ...]


def runs_table(quality: QualityOut, labels: Sequence[MeasureLabel], nouns: Nouns = USERS) -> RunsTable | None:
    """Builds the table of runs; None without an earlier run."""
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
    figures = tuple(format_number(test.get(label.key) if users else None) for label in labels)
    return who, figures, count_noun(users, nouns.judged)


def _ended_run(quality: QualityOut) -> tuple[EarlierRun, ...]:
    if quality.run is None or quality.test is None:
        return ()
    return (EarlierRun(run=f"{quality.run}, the latest", test=quality.test, test_users=quality.test_users),)


def comparison_chart(quality: QualityOut, labels: Sequence[MeasureLabel], nouns: Nouns = USERS) -> IntervalChart:
    """Draws popularity, local model and served model, overall and by groups.

    Groups are by the activity of users and by the frequency of items.
    """
    found = quality.comparison
    groups = () if found is None else tuple(_interval_group(group, nouns) for group in found.groups)
    floors = () if found is None or not found.groups else tuple(FLOORS[name] for name in found.groups[0].floors)
    names = (nouns.popular, *floors, *NAMES[1:])
    text = "Appears after the first run." if not groups else _describe(quality, groups, labels, nouns)
    notices = () if found is None else worth_notices(found, nouns)
    return IntervalChart(
        "comparison",
        f"{nouns.popular.capitalize()}, this silo alone, and with the federation",
        text,
        names,
        groups,
        "gain (federated - alone)",
        notices,
        tuple(COLOURS.get(name, COLOURS[NAMES[0]]) for name in names),
    )


def worth_notices(found: ComparisonOut, nouns: Nouns = USERS) -> tuple[str, ...]:
    """Returns warnings about figures that are unreliable or bad."""
    few = f"Only {count_noun(found.users, nouns.judged)} with test data: these figures are mostly chance."
    gain = found.validation_gain
    worse = ""
    if gain is not None and gain.mean < 0:
        sure = "" if gain.high < 0 else ", which may be chance"
        worse = (
            f"On validation data the served model is worse than this silo alone, by {format_number(-gain.mean)} "
            f"({_range(gain)}){sure}. This run brought the silo no gain."
        )
    return tuple(one for one in (few if found.few else "", worse) if one)


def _describe(
    quality: QualityOut, groups: tuple[IntervalGroup, ...], labels: Sequence[MeasureLabel], nouns: Nouns
) -> str:
    assert quality.comparison is not None, "groups come from a comparison"
    found, whole = quality.comparison, groups[0]
    floors = ""
    if shown := found.groups[0].floors:
        counted = "transitions of all" in shown
        floors = f"{'Transitions' if counted else 'Filters and EASE'} are closed forms that need no training either. "
    left_out = "".join(f"{TOO_COSTLY[name]} " for name in found.left_out)
    return (
        f"{find_title(found.measure, labels)} of {quality.run} on test items, a mean over the silo’s {nouns.judged}s "
        f"with its 95 % interval. Over {whole.note} the gain (federated - alone) is {whole.more}. {floors}{left_out}"
        f"{REFITTED if quality.refitted else ''}None of these figures leaves the silo."
    )


def _interval_group(group: GroupOut, nouns: Nouns) -> IntervalGroup:
    shown = (group.popularity, *group.floors.values(), group.alone, group.federated)
    figures = tuple((one.mean, one.low, one.high) for one in shown)
    more = f"{group.gain.mean:+.4f} ({_range(group.gain)})"
    return IntervalGroup(group.name, count_noun(group.users, nouns.judged), figures, more)


def _range(found: FigureOut) -> str:
    return f"{found.low:+.4f} to {found.high:+.4f}"
