"""Quality round by round and two kernels -> the charts of what this silo has learnt."""

from __future__ import annotations

from client_service.schemas import QualityOut, SpectrumOut
from shared.web.charts import Chart, Line
from shared.web.pages import figure


def curves(quality: QualityOut) -> tuple[Chart, ...]:
    """Recall and NDCG on validation items with the best round marked, and the loss."""
    rounds, best = quality.rounds, quality.best_round
    return (
        Chart(
            key="quality",
            title="Recall@20 and NDCG@20",
            description=_said(quality),
            x="round",
            y="on validation items",
            lines=(
                Line("Recall", tuple((one.round, one.recall) for one in rounds)),
                Line("NDCG", tuple((one.round, one.ndcg) for one in rounds)),
            ),
            mark=None if best is None else (best, f"best: round {best}"),
        ),
        Chart(
            key="loss",
            title="Training loss",
            description="Mean over the round's batches; round 0 is before any training and has none.",
            x="round",
            y="loss",
            lines=(Line("Loss", tuple((one.round, one.loss) for one in rounds)),),
        ),
    )


def _said(quality: QualityOut) -> str:
    if not quality.rounds:
        return "Figures appear after the first round."
    best = next((one for one in quality.rounds if one.round == quality.best_round), quality.rounds[-1])
    text = f"{quality.run}: best in round {best.round}, with recall {figure(best.recall)}, NDCG {figure(best.ndcg)}."
    if quality.test is None:
        return text
    recall, ndcg = quality.test.get("recall@20"), quality.test.get("ndcg@20")
    return f"{text} On test items, read once at the end: {figure(recall)} and {figure(ndcg)}."


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
