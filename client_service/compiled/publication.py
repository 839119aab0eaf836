"""Publishes the compiled folders that a silo answers from.

A folder is written under a temporary name, made durable, then renamed to `KIND-DIGEST`. `current.json` names the
folders that answer. One rename replaces that file, and so swaps all folders at once.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from shared.errors import DataError
from shared.files import make_private_folder, replace_file, sync_path
from shared.message import Message

SERVING = "serving"  # in the state directory
CURRENT = "current.json"
HEAD = "head.json"  # of a compiled folder
FORMAT: Literal["lpsfed-serving/1"] = "lpsfed-serving/1"
SHORT = 16  # characters of a digest in a folder's name
REFRESH = "refresh"  # takes the place of a run's name in a version; no run has this name
PARTIAL = ".partial"  # end of a temporary folder's name
FOLDER = r"(shard|model|sessions|nodes)-[0-9a-f]{16}"


class Publication(Message):
    """Names of the compiled folders that answer.

    task: the silo's task. shard, model: names of folders; model is None until one has been trained. shard_digest:
    digest of the training data. lists_digest: digest of all data that answers follow from. version, kept_at: version
    of the model, and the time when it was kept.
    """

    format: Literal["lpsfed-serving/1"] = FORMAT
    task: str
    shard: str = Field(pattern=f"^{FOLDER}$")
    model: str | None = Field(None, pattern=f"^{FOLDER}$")
    shard_digest: str
    lists_digest: str
    version: str | None = None
    kept_at: str = ""


def publish(serving: Path, publication: Publication) -> None:
    """Makes these folders the ones that answer.

    The change is durable when this returns. DataError for a missing folder.
    """
    for name in (publication.shard, publication.model):
        if name is not None and not (serving / name / HEAD).is_file():
            raise DataError(f"{serving / name}: expected a compiled folder, there is none: compile it first")
    replace_file(serving / CURRENT, publication.model_dump_json(indent=1).encode())


def read_publication(serving: Path) -> Publication | None:
    """Reads which folders answer.

    None before the first publication. DataError for a damaged file, and for one of another version.
    """
    path = serving / CURRENT
    try:
        return Publication.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError):
        raise DataError(
            f"{path}: expected the format {FORMAT}, got something else: remove the file, the trainer writes it anew"
        ) from None


def drop_unpublished(serving: Path) -> None:
    """Removes every compiled and temporary folder that `current.json` does not name.

    A process that has mapped such a folder goes on reading it. Only the process that compiles may call this.
    """
    try:
        found = read_publication(serving)
    except DataError:
        found = None
    kept = set() if found is None else {found.shard, found.model}
    for path in serving.glob("*"):
        if path.is_dir() and path.name not in kept:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def write_folder(serving: Path, kind: str) -> Iterator[Path]:
    """Makes a temporary folder to write compiled arrays into.

    At the end the folder is removed, unless `put_folder` has renamed it.
    """
    make_private_folder(serving)
    partial = serving / f".{kind}-{secrets.token_hex(8)}{PARTIAL}"
    partial.mkdir(0o700)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def put_folder(partial: Path, kind: str, digest: str, head: dict[str, object]) -> Path:
    """Writes the head, makes all files durable, and renames the folder to `KIND-DIGEST`.

    An existing folder of that name stays, and its path is returned.
    """
    (partial / HEAD).write_bytes(json.dumps(head, indent=1).encode())
    for path in partial.iterdir():
        sync_path(path)
    sync_path(partial)
    place = partial.parent / f"{kind}-{digest[:SHORT]}"
    if not (place / HEAD).is_file():
        shutil.rmtree(place, ignore_errors=True)  # a folder without a head is not a compiled one
        os.rename(partial, place)
        sync_path(place.parent)
    return place


def parse_version(version: str) -> tuple[str, int]:
    """Reads the run and the round from a version."""
    run, _, number = version.partition("~")[0].rpartition(".")
    return run, int(number)
