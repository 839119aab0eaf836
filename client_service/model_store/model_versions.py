"""Stored models of a silo: their names and numbers, and which one is served."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError
from torch import nn

from client_service.compiled.publication import REFRESH
from client_service.model_store.model_files import (
    CURRENT,
    PATTERN,
    ModelHead,
    load_head,
    rows_path,
    save_model,
    save_rows,
)
from client_service.models.parameter_transfer import ShardRows
from shared.files import load_message, replace_file
from shared.message import Message

NAME = "numbers.json"


class GivenNumbers(Message):
    """The last number that was given. run: that was begun last, when `before` was the last number."""

    last: int = 0
    run: str = ""
    before: int = 0


def next_number(folder: Path) -> int:
    """A number that none has had before, from 1 on. It is given once this returns."""
    given = _read(folder)
    _write(folder, given.model_copy(update={"last": given.last + 1}))
    return given.last + 1


def number_of_run(folder: Path, run: str) -> int:
    """What the models of a run that begins or goes on now bear; 0, nothing, until a number is given meanwhile."""
    given = _read(folder)
    if given.run != run:
        given = given.model_copy(update={"run": run, "before": given.last})
        _write(folder, given)
    return given.last if given.last > given.before else 0


def _read(folder: Path) -> GivenNumbers:
    return load_message(folder / NAME, GivenNumbers) or GivenNumbers()


def _write(folder: Path, given: GivenNumbers) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / NAME, given.model_dump_json().encode())


PREFIX = "earlier-"


def load_versions(folder: Path) -> tuple[ModelHead, ...]:
    """The served model's head first, then the others, the one that was served last before them."""
    current, earlier = load_head(folder), _read_earlier(folder)
    heads = [head for _, head in earlier if current is None or head.version != current.version]
    return tuple(heads if current is None else (current, *heads))


def find_version_of_run(folder: Path, run: str) -> ModelHead | None:
    """The head of this run's model; None where there is none."""
    return next((head for head in load_versions(folder) if head.run == run), None)


def save_version(folder: Path, model: nn.Module, head: ModelHead, rows: ShardRows, most: int) -> ModelHead:
    """Make this model the served one, and keep at most `most` with it; its head as it is written. rows: its shard's."""
    save_rows(folder, head.shard, rows)
    _lay_aside(folder, head)
    written = save_model(folder, model, head)
    _drop_others(folder, most)
    return written


def _lay_aside(folder: Path, after: ModelHead) -> None:
    """Keep the head of the served model beside the one of `after`, if they are of two runs or refreshes."""
    before = load_head(folder)
    if before is not None and not _take_one_place(before, after):
        replace_file(_path(folder, before), before.model_dump_json(indent=1).encode())


def _take_one_place(one: ModelHead, other: ModelHead) -> bool:
    return one.version == other.version or (one.run == other.run and one.run != REFRESH)


def _drop_others(folder: Path, most: int) -> None:
    """Remove what belongs to none of the newest `most` models."""
    current = load_head(folder)
    if current is None:
        return
    mates = [head for head in load_versions(folder)[1:] if not _take_one_place(head, current)]
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
