"""Quality round by round and two kernels -> the charts of what this silo has learnt."""

from __future__ import annotations

from client_service.schemas import QualityOut, SpectrumOut
from shared.web.charts import Chart, Line
from shared.web.pages import figure


def curves(quality: QualityOut) -> tuple[Chart, ...]:
    """Recall and NDCG on validation items, each with the best round marked, and the loss."""
    recall = tuple((one.round, one.recall) for one in quality.rounds)
    ndcg = tuple((one.round, one.ndcg) for one in quality.rounds)
    loss = Line("Loss", tuple((one.round, one.loss) for one in quality.rounds))
    said = "Mean over the batches of a round. Round 0 is before any training and has none."
    return (
        _judged(quality, "recall", Line("Recall@20", recall)),
        _judged(quality, "ndcg", Line("NDCG@20", ndcg)),
        Chart("loss", "Training loss", said, "round", "loss", (loss,)),
    )


def _judged(quality: QualityOut, measure: str, line: Line) -> Chart:
    best = quality.best_round
    return Chart(
        key=measure,
        title=line.name,
        description=_said(quality, measure, line),
        x="round",
        y="on validation items",
        lines=(line,),
        mark=None if best is None else (best, f"best: round {best}"),
    )


def _said(quality: QualityOut, measure: str, line: Line) -> str:
    best = next((value for number, value in line.points if number == quality.best_round), None)
    if best is None:
        return "Figures appear with the first run."
    text = f"{quality.run}: {figure(best)} in round {quality.best_round}, the best by NDCG."
    if quality.test is None:
        return text
    return f"{text} On test items, read once at the end: {figure(quality.test.get(f'{measure}@20'))}."


def spectra(spectrum: SpectrumOut) -> Chart:
    """The silo's kernel beside the anchor's: what rho compares. Of the two only rho leaves."""
    lines = (("This silo", spectrum.own), ("Anchor", spectrum.anchor))
    return Chart(
        key="spectrum",
        title="Spectrum beside the anchor’s",
        description=_compared(spectrum),
        x="frequency, from the lowest",
        y="share of the sum",
        lines=tuple(Line(name, tuple(enumerate(values, start=1))) for name, values in lines),
        bounds=(0.0, None),
        digits=5,
    )


def _compared(spectrum: SpectrumOut) -> str:
    if not spectrum.own:
        return "Both kernels appear in the first round whose strategy compares them."
    rho = f"rho = {figure(spectrum.rho)} in round {spectrum.round} of {spectrum.run}"
    return f"{rho}: the divergence of these two curves. Rho leaves the silo, the curve does not."
