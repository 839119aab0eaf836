"""Quality round by round and two kernels -> the charts of what this silo has learnt."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from client_service.learning.quality import MeasureLabel
from client_service.schemas import QualityOut, SpectrumOut
from client_service.tasks.task import Task
from shared.web.charts import Chart, Line
from shared.web.pages import figure


def curves(quality: QualityOut, task: Task[Any, Any]) -> tuple[Chart, ...]:
    """Every measure on validation items, with the best round marked, and the loss."""
    return (*(_measure_chart(quality, task, name, label) for name, label in task.labels.items()), _loss_chart(quality))


def _loss_chart(quality: QualityOut) -> Chart:
    """The loss, with the end of the warm-up marked: from there on it is another loss."""
    first = _first_margin(quality)
    said = "Mean over the batches of a round. Round 0 is before any training and has none."
    if first is not None:
        said += (
            f" Before round {first} the warm-up fits the popularity tables. From there on the loss has their margins in"
            " it: it may rise there though the model is no worse. Compare it within either part alone."
        )
    line = Line("Loss", tuple((one.round, one.loss) for one in quality.rounds))
    mark = None if first is None else (float(first), "warm-up over: margins join")
    return Chart("loss", "Training loss", said, "round", "loss", (line,), mark=mark)


def _first_margin(quality: QualityOut) -> int | None:
    """The first round whose loss has the margins, if a round before it was trained without them."""
    trained = [one for one in quality.rounds if one.loss is not None]
    pairs = pairwise(trained)
    return next((after.round for before, after in pairs if after.with_margins and not before.with_margins), None)


def _measure_chart(quality: QualityOut, task: Task[Any, Any], name: str, label: MeasureLabel) -> Chart:
    best = quality.best_round
    line = Line(label.title, tuple((one.round, one.values.get(name)) for one in quality.rounds))
    return Chart(
        key=name,
        title=line.name,
        description=_measure_text(quality, task.labels[task.primary].title, label, line),
        x="round",
        y="on validation items",
        lines=(line,),
        mark=None if best is None else (best, f"best: round {best}"),
    )


def _measure_text(quality: QualityOut, primary: str, label: MeasureLabel, line: Line) -> str:
    best = next((value for number, value in line.points if number == quality.best_round), None)
    if best is None:
        return "Figures appear with the first run."
    text = f"{quality.run}: {figure(best)} in round {quality.best_round}, the best by {primary}."
    if quality.valid_users == 0:
        text = f"{quality.run}: no validation items, so that no round is judged and the start is served."
    if quality.test is None or not quality.test_users:
        return text
    return f"{text} On test items, read once at the end: {figure(quality.test.get(label.key))}."


def spectra(spectrum: SpectrumOut) -> Chart:
    """The silo's kernel beside the anchor's: what rho compares. Of the two only rho leaves."""
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
        return "Both kernels appear in the first round whose strategy compares them."
    rho = f"rho = {figure(spectrum.rho)} in round {spectrum.round} of {spectrum.run}"
    return f"{rho}: the divergence of these two curves. Rho leaves the silo, the curve does not."
