"""Stores the results of sums in the state directory, by their run and digest.

Each part of a federation's work has its newest statistics in a head of its own, such as basis.json.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from client_service.sums.registry import SILO_SUMS
from client_service.sums.silo_sum import Statistics
from shared.errors import DataError
from shared.files import PRIVATE, load_message, replace_file, write_new
from shared.message import Message
from shared.method.declaration import Part
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunName
from shared.sums import list_sums
from shared.sums.sum import BASIS

FOLDER = "basis"  # beside that of the models
ADDED = "everything.txt"  # a line for each run to whose sums the silo has added its validation and test pairs too
INCLUDED = "included.txt"  # a line for each run to whose sums the silo has added anything


SECRET, SECRET_BYTES = "secret", 32


def run_secret(folder: Path, run: str, federation: str) -> bytes:
    """Reads the silo's secret for a run that sums, or makes one.

    federation: the key of its aggregator.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_new(folder / SECRET, secrets.token_bytes(SECRET_BYTES), PRIVATE)
    kept = (folder / SECRET).read_bytes()
    if len(kept) != SECRET_BYTES:
        raise DataError(f"{folder / SECRET}: expected {SECRET_BYTES} random bytes, got {len(kept)}: remove the file")
    return hmac.digest(kept, f"sums of {run} of {federation}".encode(), hashlib.sha256)


def complete_shard(folder: Path, method: MethodSettings, shard: Any) -> Any:
    """Completes the shard by the newest sums, such as of its nodes' neighbours. Slow.

    folder: where sums are kept. method: the silo's settings.
    """
    for part, basis in list_sums(method).items():
        complete = SILO_SUMS[basis.kind].complete
        head = None if complete is None else load_basis_head(folder, part)
        if complete is not None and head is not None and (found := load_basis(folder, head.digest)) is not None:
            shard = complete(found, shard, run_secret(folder, head.run, found.metadata()["federation"]))
    return shard


class BasisHead(Message):
    """Head of a part's newest statistics: run, digest, name of the sum, and size.

    hidden: own items that are not in them, because another own item has their place.
    """

    run: RunName
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    kind: str = ""
    items: int = Field(0, description="of the catalogue")
    included: bool = Field(True, description="has this silo added its part?")
    hidden: int = 0


def save_basis(folder: Path, run: str, basis: Statistics, hidden: int = 0) -> None:
    """Saves statistics and then their head.

    Older ones stay for the models that were trained with them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = {"everything": "yes"} if basis.added_all_data else {} if basis.included else {"included": "no"}
    metadata = basis.metadata() | own
    arrays = {name: np.ascontiguousarray(value) for name, value in basis.arrays().items()}
    replace_file(_path(folder, basis.digest), save(arrays, metadata=metadata))
    included = basis.included
    head = BasisHead(run=run, digest=basis.digest, kind=basis.kind, items=basis.size, included=included, hidden=hidden)
    part = SILO_SUMS[basis.kind].declared.part
    replace_file(_head(folder, part), head.model_dump_json().encode())


def save_mark(folder: Path, name: str, run: str) -> None:
    """Notes that the run's sums hold this silo's part, before it leaves.

    name: INCLUDED, or ADDED for its held-out pairs too.
    """
    if has_mark(folder, name, run):
        return
    folder.mkdir(parents=True, exist_ok=True)
    earlier = (folder / name).read_text("utf-8").split() if (folder / name).is_file() else []
    replace_file(folder / name, "\n".join([*earlier, run]).encode())


def remove_mark(folder: Path, name: str, run: str) -> None:
    """Removes the note of `save_mark` about this run."""
    if has_mark(folder, name, run):
        kept = [one for one in (folder / name).read_text("utf-8").split() if one != run]
        replace_file(folder / name, "\n".join(kept).encode())


def has_mark(folder: Path, name: str, run: str) -> bool:
    """Tells whether this silo has noted that about this run."""
    path = folder / name
    return path.is_file() and run in path.read_text("utf-8").split()


def load_basis_head(folder: Path, part: Part = BASIS) -> BasisHead | None:
    """Loads the head of a part's newest statistics; None without any."""
    return load_message(_head(folder, part), BasisHead)


def basis_time(folder: Path, part: Part = BASIS) -> str:
    """Returns the time when the newest statistics of a part were saved, UTC, ISO 8601."""
    return datetime.fromtimestamp(_head(folder, part).stat().st_mtime, UTC).isoformat(timespec="seconds")


def _head(folder: Path, part: Part) -> Path:
    return folder / f"{part}.json"


def load_basis(folder: Path, digest: str) -> Statistics | None:
    """Loads the statistics of a digest; None if they are not kept.

    Raises DataError for a file with other content.
    """
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
    return replace(found, added_all_data=known.get("everything") == "yes", included=known.get("included") != "no")


def _metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="numpy") as file:
        return dict(file.metadata() or {})


def _path(folder: Path, digest: str) -> Path:
    return folder / f"basis-{digest[:16]}.safetensors"
