"""What a silo knows of its own rounds <-> two small files, so that a restart still shows it."""

from __future__ import annotations

from pathlib import Path

from client_service.saturation import saturation_notices
from client_service.schemas import EarlierRun, QualityOut, SpectrumOut
from client_service.shard.files import settle
from shared.message import Message

QUALITY = "quality.json"
SPECTRA = "spectra.json"
MOST_EARLIER = 20  # runs of which figures are kept beside the last one's
UNJUDGED = (
    "No validation items: nothing is chosen by this silo's own data. Served is the model at which training starts, "
    "with the settings that need no choice; no round of training is judged, and none replaces it."
)


def keep_quality(folder: Path, quality: QualityOut) -> None:
    _replace(folder / QUALITY, quality)


def earlier_runs(last: QualityOut, run: str) -> tuple[EarlierRun, ...]:
    """What is known of the runs before `run`, from the figures kept last, which may be its own."""
    if last.run is None or last.run == run or not last.finished or last.test is None:
        return last.earlier
    ended = EarlierRun(run=last.run, test=last.test, test_users=last.test_users)
    return (*last.earlier, ended)[-MOST_EARLIER:]


def keep_spectra(folder: Path, spectra: SpectrumOut) -> None:
    _replace(folder / SPECTRA, spectra)


def kept_quality(folder: Path, client: str) -> QualityOut:
    """The figures of the last run that this client took part in."""
    try:
        return QualityOut.model_validate_json((folder / QUALITY).read_bytes())
    except (FileNotFoundError, ValueError):
        return QualityOut(client=client)


def kept_spectra(folder: Path) -> SpectrumOut:
    """What the latest rho compared; empty where there was none."""
    try:
        return SpectrumOut.model_validate_json((folder / SPECTRA).read_bytes())
    except (FileNotFoundError, ValueError):
        return SpectrumOut()


def quality_warnings(quality: QualityOut) -> tuple[str, ...]:
    """What a reader of these figures has to know first."""
    return (*((UNJUDGED,) if quality.valid_users == 0 else ()), *saturation_notices(quality))


def _replace(path: Path, figures: Message) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(figures.model_dump_json(), encoding="utf-8")
    settle(partial, path)
