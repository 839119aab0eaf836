"""Manages a silo's stored models: their names and numbers, and which one is served."""

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


class VersionNumbers(Message):
    """Record of the numbers that models were given.

    last: the last number. run: the run that began last. before: the last number when that run began.
    """

    last: int = 0
    run: str = ""
    before: int = 0


def next_number(folder: Path) -> int:
    """Gives a number that no model has had before, from 1 on.

    The number is recorded on the disk when this returns.
    """
    given = _read(folder)
    _write(folder, given.model_copy(update={"last": given.last + 1}))
    return given.last + 1


def find_run_number(folder: Path, run: str) -> int:
    """Returns the number of the models of a run that begins or continues.

    The number is 0, which means none, until a number is given after the run has begun.
    """
    given = _read(folder)
    if given.run != run:
        given = given.model_copy(update={"run": run, "before": given.last})
        _write(folder, given)
    return given.last if given.last > given.before else 0


def _read(folder: Path) -> VersionNumbers:
    return load_message(folder / NAME, VersionNumbers) or VersionNumbers()


def _write(folder: Path, given: VersionNumbers) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / NAME, given.model_dump_json().encode())


PREFIX = "earlier-"


def load_versions(folder: Path) -> tuple[ModelHead, ...]:
    """Loads the heads of the stored models, the served model first.

    The others follow, the one that was served last first.
    """
    current, earlier = load_head(folder), _read_earlier(folder)
    heads = [head for _, head in earlier if current is None or head.version != current.version]
    return tuple(heads if current is None else (current, *heads))


def find_version_of_run(folder: Path, run: str) -> ModelHead | None:
    """Finds the head of a run's stored model; None for a run without one."""
    return next((head for head in load_versions(folder) if head.run == run), None)


def save_version(folder: Path, model: nn.Module, head: ModelHead, rows: ShardRows, most: int) -> ModelHead:
    """Saves a model as the served one, and returns its head as written.

    rows: the rows of its shard. most: number of models that are kept at most, this one included.
    """
    save_rows(folder, head.shard, rows)
    _keep_served_head(folder, head)
    written = save_model(folder, model, head)
    _drop_others(folder, most)
    return written


def _keep_served_head(folder: Path, after: ModelHead) -> None:
    """Keeps the head of the served model as an earlier one.

    Nothing is kept if the model `after`, which is to be served, replaces it.
    """
    before = load_head(folder)
    if before is not None and not _replace_each_other(before, after):
        replace_file(_path(folder, before), before.model_dump_json(indent=1).encode())


def _replace_each_other(one: ModelHead, other: ModelHead) -> bool:
    """Checks if two models have the same version or the same run.

    Only one of such models is kept. Refreshes, which bear no run's name, do not replace each other.
    """
    return one.version == other.version or (one.run == other.run and one.run != REFRESH)


def _drop_others(folder: Path, most: int) -> None:
    """Removes the files that belong to none of the newest `most` models."""
    current = load_head(folder)
    if current is None:
        return
    others = [head for head in load_versions(folder)[1:] if not _replace_each_other(head, current)]
    kept = [current, *others[: most - 1]]
    names = {head.version for head in kept}
    for path, head in _read_earlier(folder):
        if head.version not in names or head.version == current.version:
            path.unlink(missing_ok=True)
    needed = {folder / head.parameters for head in kept} | {rows_path(folder, head.shard) for head in kept}
    for path in (*folder.glob("model-*.safetensors"), *folder.glob(PATTERN)):
        if path not in needed:
            path.unlink(missing_ok=True)


def choose_version(folder: Path, chosen: ModelHead) -> None:
    """Makes a kept model the served one, also after a restart."""
    _keep_served_head(folder, chosen)
    replace_file(folder / CURRENT, chosen.model_dump_json(indent=1).encode())
    _path(folder, chosen).unlink(missing_ok=True)


def list_model_files(head: ModelHead) -> frozenset[str]:
    """Lists the names of the files that a served model needs.

    Files that follow from its shard are left out.
    """
    return frozenset({CURRENT, head.parameters, rows_path(Path(), head.shard).name})


def _path(folder: Path, head: ModelHead) -> Path:
    return folder / f"{PREFIX}{head.version}.json"


def _read_earlier(folder: Path) -> list[tuple[Path, ModelHead]]:
    """Reads the heads of earlier models, the newest first.

    Unreadable files are left out.
    """
    found = []
    for path in folder.glob(f"{PREFIX}*.json"):
        try:
            found.append((path.stat().st_mtime_ns, path, ModelHead.model_validate_json(path.read_bytes())))
        except (OSError, ValidationError):
            continue
    return [(path, head) for _, path, head in sorted(found, key=lambda one: one[0], reverse=True)]
