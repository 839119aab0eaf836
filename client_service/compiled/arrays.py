"""Writes and opens the arrays of a compiled folder.

The folder's head states the length of each array's file.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar
from weakref import WeakSet

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
_maps: Final = WeakSet[mmap.mmap]()  # the maps of all open arrays of this process


class _Sizes(BaseModel):
    """Sizes of the arrays' files in bytes, by the arrays' names.

    Every head has this field beside its own ones.
    """

    model_config = ConfigDict(extra="ignore")
    sizes: dict[str, int]


def save_folder(
    serving: Path,
    kind: str,
    head: BaseModel,
    arrays: Arrays,
    later: Mapping[str, tuple[DTypeLike, tuple[int, ...]]] = NOTHING_LATER,
) -> Path:
    """Writes the folder `KIND-<digest>` in `serving` and returns its path.

    The files are durable when this returns. An undamaged folder of this name is reused. later: types and shapes of
    arrays that begin as zeros and are filled afterwards.
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
        except DataError:  # the folder is damaged and is written anew
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
    """Reserves the blocks of a file on the disk.

    OSError for a full disk. Without reserved blocks, a process that writes to the mapped file later would be killed.
    """
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def read_folder_head(folder: Path, kind: type[Head]) -> Head:
    """Reads the head of a folder and checks the lengths of its files.

    DataError for a damaged folder, or for one of another kind.
    """
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
    """Opens the head and all arrays of a folder.

    The arrays stay readable when the folder is removed later. DataError as from `read_folder_head` and `open_array`.
    """
    head = read_folder_head(folder, kind)
    sizes = _Sizes.model_validate_json((folder / HEAD).read_bytes()).sizes
    return head, {name: open_array(folder, name) for name in sizes}


def open_array(folder: Path, name: str) -> NDArray[Any]:
    """Opens an array of a folder, and maps it if its file is large.

    The file is mapped from `MAPPED_FROM` bytes on. DataError for a damaged file.
    """
    path = folder / f"{name}.npy"
    try:
        if path.stat().st_size < MAPPED_FROM:
            with path.open("rb") as file:
                found: NDArray[Any] = read_array(file, allow_pickle=False)
            return found
        return map_array(path, "r")
    except (OSError, ValueError):
        raise folder_error(folder, f"an array in {path.name}, got something else") from None


def map_array(path: Path, mode: Literal["r", "r+"]) -> NDArray[Any]:
    """Maps the array of a file into memory.

    OSError or ValueError for a damaged file.
    """
    found = open_memmap(path, mode=mode)
    assert isinstance(found.base, mmap.mmap)
    _maps.add(found.base)
    # A plain view, because indexing a numpy memmap object costs more than reading the values.
    return found.view(np.ndarray)


def release_pages() -> None:
    """Takes the pages of all mapped arrays out of this process's memory.

    The system keeps them cached while it has room. The next access to a page that is cached takes a microsecond.
    Nothing happens where the system knows no such advice.
    """
    if hasattr(mmap, "MADV_DONTNEED"):
        for one in list(_maps):
            one.madvise(mmap.MADV_DONTNEED)


def folder_error(folder: Path, expected: str) -> DataError:
    """Makes the error for an unusable folder, which tells the user to remove it."""
    return DataError(f"{folder}: expected {expected}: remove this folder, the trainer compiles it anew")


@contextmanager
def errors_of_folder(folder: Path) -> Iterator[None]:
    """Turns the errors of arrays that do not fit their head into DataError."""
    try:
        yield
    except KeyError as error:
        raise folder_error(folder, f"a file {error.args[0]}.npy, got none") from None
    except ValueError as error:
        raise folder_error(folder, str(error)) from None
