"""The models of a silo's last runs on its shard: which there are, which one is served, and which one goes.

`model.json` is the head of the served one; `earlier-<version>.json` are those of the others. A run has one of them.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from torch import nn

from client_service.serving.checkpoint import CURRENT, ModelHead, read_head, save_model
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


def keep_version(folder: Path, model: nn.Module, head: ModelHead, most: int) -> ModelHead:
    """Make this model the served one, and keep at most `most` with it, all of its shard; its head as it is written."""
    _lay_aside(folder, head)
    written = save_model(folder, model, head)
    _drop_others(folder, most)
    return written


def _lay_aside(folder: Path, after: ModelHead) -> None:
    """Keep the head of the served model beside the one of `after`, if they are of two runs on one shard."""
    before = read_head(folder)
    if before is not None and before.shard == after.shard and before.run != after.run:
        replace_file(_path(folder, before), before.model_dump_json(indent=1).encode())


def _drop_others(folder: Path, most: int) -> None:
    """Remove what belongs to none of the newest `most` models, nor to the served one's shard."""
    current = read_head(folder)
    if current is None:
        return
    mates = [head for head in kept_versions(folder)[1:] if head.shard == current.shard and head.run != current.run]
    kept = {current.version, *(head.version for head in mates[: most - 1])}
    for path, head in _read_earlier(folder):
        if head.version not in kept or head.version == current.version:
            path.unlink(missing_ok=True)
    for path in folder.glob("model-*.safetensors"):
        if path.name.removeprefix("model-").removesuffix(".safetensors") not in kept:
            path.unlink(missing_ok=True)


def drop_all(folder: Path) -> None:
    """Remove every model."""
    for pattern in (CURRENT, f"{PREFIX}*.json", "model-*.safetensors"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def choose_version(folder: Path, chosen: ModelHead) -> None:
    """Make a kept model the served one, also after a restart."""
    _lay_aside(folder, chosen)
    replace_file(folder / CURRENT, chosen.model_dump_json(indent=1).encode())
    _path(folder, chosen).unlink(missing_ok=True)


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
