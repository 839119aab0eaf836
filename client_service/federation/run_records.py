"""Files of a silo's measures and spectra, and warnings about its training."""

from __future__ import annotations

from pathlib import Path

from client_service.federation.messages import EarlierRun, QualityOut, SpectrumOut
from shared.files import load_message, replace_file

SATURATED = 0.25  # from this share of the positives on, the rest no longer makes up for them


def saturation_notices(quality: QualityOut) -> tuple[str, ...]:
    """Warns once the positives of a round have saturated.

    The sentence is the same for the rest of the run.
    """
    first = next((entry.round for entry in quality.rounds if entry.saturated >= SATURATED), None)
    if first is None:
        return ()
    return (
        f"in round {first} of {quality.run} a quarter or more of the positives lay at the angle pi, where the loss has"
        " no gradient, so that training learns nothing from them: use a smaller margin_strength (gamma), or"
        " margin_reading = additive",
    )


QUALITY = "quality.json"
SPECTRA = "spectra.json"
MOST_EARLIER = 20  # runs of which figures are kept beside the last one's
UNJUDGED = (
    "No validation items: no model is chosen by this silo's own data. The silo serves the model that training starts "
    "with, with default settings; no round is evaluated, and none replaces it."
)


def save_quality(folder: Path, quality: QualityOut) -> None:
    replace_file(folder / QUALITY, quality.model_dump_json().encode())


def earlier_runs(last: QualityOut, run: str) -> tuple[EarlierRun, ...]:
    """Lists the results of runs before `run` from the last saved measures."""
    if last.run is None or last.run == run or not last.finished or last.test is None:
        return last.earlier
    ended = EarlierRun(run=last.run, test=last.test, test_users=last.test_users)
    return (*last.earlier, ended)[-MOST_EARLIER:]


def save_spectra(folder: Path, spectra: SpectrumOut) -> None:
    replace_file(folder / SPECTRA, spectra.model_dump_json().encode())


def load_quality(folder: Path, client: str) -> QualityOut:
    """Loads the measures of the client's last run."""
    return load_message(folder / QUALITY, QualityOut) or QualityOut(client=client)


def load_spectra(folder: Path) -> SpectrumOut:
    """Loads the spectra of the latest rho; empty without any."""
    return load_message(folder / SPECTRA, SpectrumOut) or SpectrumOut()


def quality_warnings(quality: QualityOut) -> tuple[str, ...]:
    """Lists warnings about measures: no validation items, saturated positives."""
    return (*((UNJUDGED,) if quality.valid_users == 0 else ()), *saturation_notices(quality))
