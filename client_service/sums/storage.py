"""A common basis <-> the silo's state directory, under the run that has summed it and under its digest."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from client_service.sums.registry import SILO_SUMS
from client_service.sums.silo_sum import Statistics
from shared.errors import DataError
from shared.files import load_message, replace_file
from shared.message import Message
from shared.protocol.schemas import RunName

FOLDER = "basis"  # beside that of the models
ADDED = "everything.txt"  # the run to whose sums the silo has added its validation and test pairs too
INCLUDED = "included.txt"  # the run to whose sums the silo has added anything
HEAD = "basis.json"


class BasisHead(Message):
    """The newest basis of a silo: the run that has summed it, its digest and its size."""

    run: RunName
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    items: int = Field(0, description="of the catalogue")


def save_basis(folder: Path, run: str, basis: Statistics) -> None:
    """Write it, then its head. An older one stays for the models that were trained with it."""
    folder.mkdir(parents=True, exist_ok=True)
    own = {"everything": "yes"} if basis.everything else {} if basis.included else {"included": "no"}
    metadata = basis.described() | own
    arrays = {name: np.ascontiguousarray(value) for name, value in basis.arrays().items()}
    replace_file(_path(folder, basis.digest), save(arrays, metadata=metadata))
    head = BasisHead(run=run, digest=basis.digest, items=basis.size)
    replace_file(folder / HEAD, head.model_dump_json().encode())


def save_mark(folder: Path, name: str, run: str) -> None:
    """Write down, before it leaves, that the run's sums hold this silo's part (INCLUDED), or its held-out pairs too
    (ADDED)."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / name, run.encode())


def has_mark(folder: Path, name: str, run: str) -> bool:
    """Has this silo written that down of this run?"""
    path = folder / name
    return path.is_file() and path.read_bytes() == run.encode()


def load_basis_head(folder: Path) -> BasisHead | None:
    """Of the newest basis; None where there is none."""
    return load_message(folder / HEAD, BasisHead)


def basis_time(folder: Path) -> str:
    """When the newest basis was kept, UTC, ISO 8601."""
    return datetime.fromtimestamp((folder / HEAD).stat().st_mtime, UTC).isoformat(timespec="seconds")


def load_basis(folder: Path, digest: str) -> Statistics | None:
    """The basis of this digest; None where it is not kept. DataError for a file with another content."""
    path = _path(folder, digest)
    if not path.exists():
        return None
    try:
        found = _read(path)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise DataError(f"{path}: expected a common basis, got {type(error).__name__}") from None
    if found.digest != digest:
        raise DataError(f"{path}: expected a common basis of digest {digest}, got {found.digest}")
    return found


def _read(path: Path) -> Statistics:
    known = _metadata(path)
    found = SILO_SUMS[known["kind"]].load(load_file(path), known)
    return replace(found, everything=known.get("everything") == "yes", included=known.get("included") != "no")


def _metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="numpy") as file:
        return dict(file.metadata() or {})


def _path(folder: Path, digest: str) -> Path:
    return folder / f"basis-{digest[:16]}.safetensors"
