"""Names the compiled folders that a silo answers from, and swaps them by one rename.

A folder is written under a temporary name, made durable, then renamed to `KIND-DIGEST`. `current.json` says which ones
answer.
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
REFRESH = "refresh"  # in the place of a run's name in a version; no run is called so
PARTIAL = ".partial"  # end of a temporary folder's name
FOLDER = r"(shard|model|sessions)-[0-9a-f]{16}"


class Publication(Message):
    """The compiled folders that answer.

    task: of the silo. shard, model: names of folders; model None: none has been trained yet. shard_digest: of the
    training data. lists_digest: of all data that answers follow from. version, kept_at: of the model.
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
    """Make these folders the ones that answer. Durable when this returns.

    DataError where a folder is missing.
    """
    for name in (publication.shard, publication.model):
        if name is not None and not (serving / name / HEAD).is_file():
            raise DataError(f"{serving / name}: expected a compiled folder, there is none: compile it first")
    replace_file(serving / CURRENT, publication.model_dump_json(indent=1).encode())


def read_publication(serving: Path) -> Publication | None:
    """Read which folders answer; None where none were published.

    DataError for a damaged file, and for one of another version.
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
    """Remove every compiled and temporary folder that `current.json` does not name.

    A process that has one mapped goes on reading it. To be called by the process that compiles.
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
    """Give a temporary folder to write compiled arrays into; it is removed at the end unless it was put in place."""
    make_private_folder(serving)
    partial = serving / f".{kind}-{secrets.token_hex(8)}{PARTIAL}"
    partial.mkdir(0o700)
    try:
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def put_folder(partial: Path, kind: str, digest: str, head: dict[str, object]) -> Path:
    """Write the head, make everything durable, and rename the folder to `KIND-DIGEST`.

    A folder of that name that is there already stays, and is the one that is returned.
    """
    (partial / HEAD).write_bytes(json.dumps(head, indent=1).encode())
    for path in partial.iterdir():
        sync_path(path)
    sync_path(partial)
    place = partial.parent / f"{kind}-{digest[:SHORT]}"
    if not (place / HEAD).is_file():
        shutil.rmtree(place, ignore_errors=True)  # without a head it is no compiled folder
        os.rename(partial, place)
        sync_path(place.parent)
    return place


def parse_version(version: str) -> tuple[str, int]:
    """The run and the round that a version names."""
    run, _, number = version.partition("~")[0].rpartition(".")
    return run, int(number)
