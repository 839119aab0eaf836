"""Evidence of one part as a JSON file: its probes, and its ledger or record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from shared.errors import DataError, SettingsError
from shared.files import open_replacement
from shared.message import Message
from shared.method.declaration import Declaration
from shared.protocol.schemas import ArrivalOut, ClientName, RunHistoryOut

Role = Literal["client", "aggregator", "gateway"]
MOST_BYTES = 1 << 30  # largest evidence file, in bytes


class ProbeResult(Message):
    """Result of one probe. `kind` is the same for the same try by several parts."""

    kind: str
    name: str
    expected: str
    observed: str
    held: bool


def make_result(kind: str, name: str, expected: str, observed: str, *, held: bool | None = None) -> ProbeResult:
    """Makes the result of a probe.

    By default it held where the observed is the expected.
    """
    verdict = expected == observed if held is None else held
    return ProbeResult(kind=kind, name=name, expected=expected, observed=observed, held=verdict)


class ProbeSending(Message):
    """Body that the probes have sent past the gate on purpose, with its status."""

    call: Literal["join", "update", "other"]
    run: str | None = None
    round: int | None = None
    bytes: int
    sha256: str
    status: int | None = Field(None, description="None: no answer came")


class PartEvidence(Message):
    """Evidence of one part.

    A client gives its declaration and its ledger; the aggregator its record of arrivals and its runs.
    """

    name: ClientName
    role: Role
    taken_at: str = Field(description="UTC, ISO 8601")
    probes: tuple[ProbeResult, ...] = ()
    probed_at: str | None = Field(None, description="UTC, ISO 8601; none: at `taken_at`")
    sent: tuple[ProbeSending, ...] = Field(
        (), description="bodies of these probes, and of earlier ones kept in the same file"
    )
    declaration: Declaration | None = None
    entries: tuple[dict[str, Any], ...] = ()
    arrivals: tuple[ArrivalOut, ...] = ()
    runs: tuple[RunHistoryOut, ...] = ()


def utc_now() -> str:
    """Returns the time now: UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_evidence(evidence: PartEvidence, path: Path) -> None:
    """Writes evidence in one step; raises SettingsError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_replacement(path) as partial:
            partial.write_text(evidence.model_dump_json(), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: expected a writable path ({error.strerror})") from None


def merge_evidence(evidence: PartEvidence, path: Path) -> None:
    """Writes evidence, and keeps what earlier probes of this part have sent.

    The aggregator's record keeps it too. A body that was only planned before and is recorded again now is recorded
    once.
    """
    again = {_body_key(sending) for sending in evidence.sent}
    earlier = read_evidence(path).sent if path.exists() else ()
    kept = [sending for sending in earlier if sending.status is not None or _body_key(sending) not in again]
    write_evidence(evidence.model_copy(update={"sent": (*kept, *evidence.sent)}), path)


def _body_key(sending: ProbeSending) -> tuple[object, ...]:
    return sending.call, sending.run, sending.round, sending.sha256


def read_evidence(path: Path) -> PartEvidence:
    """Reads evidence; raises DataError naming the file for another content."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(f"{path}: expected at most {MOST_BYTES:,} bytes of evidence, got more")
        return PartEvidence.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path}: expected evidence ({error.strerror})") from None
    except ValidationError as error:
        raise DataError(f"{path}: expected evidence, got other content in {error.error_count()} places") from None


def gather_evidence(paths: Sequence[Path]) -> tuple[PartEvidence, ...]:
    """Reads the evidence of files and of folders of them."""
    return tuple(read_evidence(file) for path in paths for file in _evidence_files(path))


def _evidence_files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    files = sorted(path.glob("*.json"))
    if not files:
        raise DataError(f"{path}: expected a folder with evidence (*.json), got none in it")
    yield from files
