"""Writes and opens the arrays of a compiled folder, whose head says how long their files are."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
from numpy.lib.format import open_memmap, read_array
from numpy.typing import DTypeLike, NDArray
from pydantic import BaseModel, ConfigDict

from client_service.compiled.publication import HEAD, SHORT, put_folder, write_folder
from shared.errors import DataError

MAPPED_FROM: Final = 1 << 14  # bytes from which an array's file is mapped; a smaller one is read
Arrays = Mapping[str, NDArray[Any]]
NOTHING_LATER: Final[Mapping[str, tuple[DTypeLike, tuple[int, ...]]]] = MappingProxyType({})
Head = TypeVar("Head", bound=BaseModel)


class _Sizes(BaseModel):
    """Of the arrays' files, in bytes, by the arrays' names; in every head beside its own fields."""

    model_config = ConfigDict(extra="ignore")
    sizes: dict[str, int]


def save_folder(
    serving: Path,
    kind: str,
    head: BaseModel,
    arrays: Arrays,
    later: Mapping[str, tuple[DTypeLike, tuple[int, ...]]] = NOTHING_LATER,
) -> Path:
    """Writes the folder `KIND-<digest>` in `serving`, durably; a whole one that is there already is reused.

    later: types and shapes of arrays that begin as zeros and are filled afterwards.
    """
    fields = head.model_dump(mode="json")
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    place = serving / f"{kind}-{digest.hexdigest()[:SHORT]}"
    if place.exists():
        try:
            if read_folder_head(place, type(head)) == head:
                return place
        except DataError:  # it is damaged
            pass
        shutil.rmtree(place)
    with write_folder(serving, kind) as partial:
        for name, array in arrays.items():
            np.save(partial / f"{name}.npy", array, allow_pickle=False)
        for name, (dtype, shape) in later.items():
            open_memmap(partial / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
            _reserve(partial / f"{name}.npy")
        sizes = {name: (partial / f"{name}.npy").stat().st_size for name in (*arrays, *later)}
        return put_folder(partial, kind, digest.hexdigest(), {**fields, "sizes": sizes})


def _reserve(path: Path) -> None:
    """The disk keeps a file's room. OSError where it has none: who writes to a map of it later would be killed."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def read_folder_head(folder: Path, kind: type[Head]) -> Head:
    """The head of a folder whose files are as long as it says. DataError for a damaged or another folder."""
    try:
        fields = json.loads((folder / HEAD).read_bytes())
        sizes = _Sizes.model_validate(fields).sizes
        head = kind.model_validate({name: value for name, value in fields.items() if name != "sizes"})
    except (OSError, ValueError) as error:
        found = "none" if isinstance(error, FileNotFoundError) else "another content"
        raise folder_error(folder, f"a file {HEAD} of this version, got {found}") from None
    for name, size in sizes.items():
        path = folder / f"{name}.npy"
        found_size = path.stat().st_size if path.is_file() else 0
        if found_size != size:
            raise folder_error(folder, f"{size:,} bytes in {path.name}, got {found_size:,}")
    return head


def open_arrays(folder: Path, kind: type[Head]) -> tuple[Head, dict[str, NDArray[Any]]]:
    """The head and all arrays of a folder, so that nothing of it has to be there later. DataError as from each."""
    head = read_folder_head(folder, kind)
    sizes = _Sizes.model_validate_json((folder / HEAD).read_bytes()).sizes
    return head, {name: open_array(folder, name) for name in sizes}


def open_array(folder: Path, name: str) -> NDArray[Any]:
    """An array of a folder, mapped where it is large. DataError for a damaged file."""
    path = folder / f"{name}.npy"
    try:
        if path.stat().st_size < MAPPED_FROM:
            with path.open("rb") as file:
                found: NDArray[Any] = read_array(file, allow_pickle=False)
            return found
        # A plain view of the mapping: what numpy does for its own kind of map on each look costs more than the look.
        mapped: NDArray[Any] = open_memmap(path, mode="r").view(np.ndarray)
        return mapped
    except (OSError, ValueError):
        raise folder_error(folder, f"an array in {path.name}, got something else") from None


def folder_error(folder: Path, expected: str) -> DataError:
    """The error for a folder that cannot be used, which says what to do."""
    return DataError(f"{folder}: expected {expected}: remove this folder, the trainer compiles it anew")
