"""The models of a silo's last runs and refreshes: which there are, which one is served, and which one goes.

`model.json` is the head of the served one; `earlier-<version>.json` are those of the others. A run has one of them, a
refresh each time one of its own. One of another shard is there with the ids of that shard's rows.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from torch import nn

from client_service.models.carrying import ShardRows
from client_service.serving.checkpoint import CURRENT, REFRESH, ModelHead, read_head, save_model
from client_service.serving.shard_rows import PATTERN, keep_rows, rows_path
from client_service.shard.files import replace_file

PREFIX = "earlier-"


def kept_versions(folder: Path) -> tuple[ModelHead, ...]:
    """The served model's head first, then the others, the one that was served last before them."""
    current, earlier = read_head(folder), _read_earlier(folder)
    heads = [head for _, head in earlier if current is None or head.version != current.version]
    return tuple(heads if current is None else (current, *heads))


def kept_of_run(folder: Path, run: str) -> ModelHead | None:
    """The head of this run's model; None where there is none."""
    return next((head for head in kept_versions(folder) if head.run == run), None)


def keep_version(folder: Path, model: nn.Module, head: ModelHead, rows: ShardRows, most: int) -> ModelHead:
    """Make this model the served one, and keep at most `most` with it; its head as it is written. rows: its shard's."""
    keep_rows(folder, head.shard, rows)
    _lay_aside(folder, head)
    written = save_model(folder, model, head)
    _drop_others(folder, most)
    return written


def _lay_aside(folder: Path, after: ModelHead) -> None:
    """Keep the head of the served model beside the one of `after`, if they are of two runs or refreshes."""
    before = read_head(folder)
    if before is not None and not _take_one_place(before, after):
        replace_file(_path(folder, before), before.model_dump_json(indent=1).encode())


def _take_one_place(one: ModelHead, other: ModelHead) -> bool:
    return one.version == other.version or (one.run == other.run and one.run != REFRESH)


def _drop_others(folder: Path, most: int) -> None:
    """Remove what belongs to none of the newest `most` models."""
    current = read_head(folder)
    if current is None:
        return
    mates = [head for head in kept_versions(folder)[1:] if not _take_one_place(head, current)]
    kept = [current, *mates[: most - 1]]
    names = {head.version for head in kept}
    for path, head in _read_earlier(folder):
        if head.version not in names or head.version == current.version:
            path.unlink(missing_ok=True)
    needed = {folder / head.parameters for head in kept} | {rows_path(folder, head.shard) for head in kept}
    for path in (*folder.glob("model-*.safetensors"), *folder.glob(PATTERN)):
        if path not in needed:
            path.unlink(missing_ok=True)


def choose_version(folder: Path, chosen: ModelHead) -> None:
    """Make a kept model the served one, also after a restart."""
    _lay_aside(folder, chosen)
    replace_file(folder / CURRENT, chosen.model_dump_json(indent=1).encode())
    _path(folder, chosen).unlink(missing_ok=True)


def files_of(head: ModelHead) -> frozenset[str]:
    """The names of the files that a served model needs, beside what follows from its shard."""
    return frozenset({CURRENT, head.parameters, rows_path(Path(), head.shard).name})


def _path(folder: Path, head: ModelHead) -> Path:
    return folder / f"{PREFIX}{head.version}.json"


def _read_earlier(folder: Path) -> list[tuple[Path, ModelHead]]:
    """The newest first. What cannot be read is no model."""
    found = []
    for path in folder.glob(f"{PREFIX}*.json"):
        try:
            found.append((path.stat().st_mtime_ns, path, ModelHead.model_validate_json(path.read_bytes())))
        except (OSError, ValidationError):
            continue
    return [(path, head) for _, path, head in sorted(found, key=lambda one: one[0], reverse=True)]
