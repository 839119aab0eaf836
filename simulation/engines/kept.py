"""A run on an engine <-> two files of its folder, the state and the document, so that the same command goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field, ValidationError

from client_service.data.files import replace_file
from shared.errors import DataError
from shared.message import Message
from shared.protocol.schemas import RoundOut, RunIn

FOLDER = "engine"


class KeptRun(Message):
    """Where a run stands. round: the last one aggregated; 0: none. state: sha256 of the state after it. seconds: spent
    so far, over all processes that worked on it. latest: the last scalars of each client."""

    request: RunIn
    started_at: str
    round: int = 0
    state: str = ""
    seconds: float = 0.0
    latest: Mapping[str, Mapping[str, float]] = Field(default_factory=dict)
    rounds: tuple[RoundOut, ...] = ()


class RunFolder:
    """The files of one run, by its name."""

    def __init__(self, folder: Path, run: str) -> None:
        self._folder, self._document = folder / FOLDER, folder / FOLDER / f"{run}.json"
        self._run = run

    def load(self, request: RunIn) -> KeptRun | None:
        """What is kept of this run; None where nothing is. DataError for another run's, or a damaged document."""
        try:
            kept = KeptRun.model_validate_json(self._document.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            raise DataError(f"{self._document}: expected a run as it was kept here, got something else") from None
        if kept.request != request:
            raise DataError(f"{self._document}: expected a run of the same settings, got another: take a new folder")
        return kept

    def load_state(self, kept: KeptRun) -> bytes:
        """The state after the last round. DataError where the file is another than was kept."""
        path = self._state(kept.round)
        content = path.read_bytes() if path.exists() else b""
        if hashlib.sha256(content).hexdigest() != kept.state:
            raise DataError(f"{path}: expected the state after round {kept.round}, got another content")
        return content

    def keep(self, kept: KeptRun, state: bytes | None = None) -> KeptRun:
        """Put it on the disk, a new state before the document that names it; the states before it go."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if state is not None:
            kept = kept.model_copy(update={"state": hashlib.sha256(state).hexdigest()})
            replace_file(self._state(kept.round), state)
        replace_file(self._document, kept.model_dump_json().encode())
        for path in self._folder.glob(f"{self._run}-*.safetensors"):
            if path != self._state(kept.round):
                path.unlink()
        return kept

    def _state(self, number: int) -> Path:
        return self._folder / f"{self._run}-{number}.safetensors"
