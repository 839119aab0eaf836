"""Writes and reads a silo's computed item vectors with the state of their encoder.

The file is an npz archive of plain arrays: item ids, vectors, a head in JSON with the digest of all arrays, and the
arrays of the encoder's state under names that begin with `state-`.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib.format import read_array, write_array
from numpy.typing import NDArray

from client_service.data.files import read_bytes
from client_service.text.projection import Float32, ProjectionEncoder
from client_service.text.vocabulary import SvdEncoder
from shared.errors import DataError
from shared.files import replace_file

FORMAT: Final = "lpsfed-features/1"
HEAD, ITEMS, VALUES, STATE = "head", "items", "values", "state-"
MOST_BYTES: Final = 4 << 30  # of all arrays together
EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the same content gives the same file
TextEncoder = ProjectionEncoder | SvdEncoder
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class FeatureFile:
    """Vectors of items with the name and the state of their encoder.

    They are (N, d), finite, of length one or zero.
    """

    item_ids: tuple[str, ...]
    values: Float32
    encoder: str
    state: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def text_encoder(self) -> TextEncoder | None:
        """Encoder that computed the features, for other items; None if the file lacks it."""
        return make_encoder(self.encoder, self.state)


def make_encoder(name: str, state: Mapping[str, NDArray[Any]]) -> TextEncoder | None:
    """Makes the encoder of a name and its state; None for another kind.

    It needs no package but numpy. Raises ValueError, with what was expected, for a state that does not fit.
    """
    kind, _, rest = name.partition("/")
    width = rest.partition("/")[0]
    if kind == "projection" and width.isdigit() and 1 <= int(width) <= 4096:
        projection = ProjectionEncoder(int(width))
        return projection if projection.name == name else None
    if kind != "svd":
        return None
    vocabulary = SvdEncoder.from_state(state)
    if vocabulary.name != name:
        raise ValueError(f"the vocabulary of {name}, got that of {vocabulary.name}")
    return vocabulary


def write_feature_file(path: Path, features: FeatureFile) -> str:
    """Writes the file whole or not at all, and returns its digest."""
    arrays: Arrays = {ITEMS: np.frombuffer(json.dumps(features.item_ids).encode(), dtype=np.uint8)}
    arrays |= {VALUES: features.values.astype("<f4")}
    arrays |= {f"{STATE}{name}": array for name, array in features.state.items()}
    digest = _digest_arrays(features.encoder, arrays)
    head = json.dumps({"format": FORMAT, "encoder": features.encoder, "digest": digest})
    arrays[HEAD] = np.frombuffer(head.encode(), dtype=np.uint8)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            write_array(content, np.ascontiguousarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", EPOCH), content.getvalue())
    replace_file(path, packed.getvalue())
    return digest


def read_feature_file(path: Path) -> FeatureFile:
    """Reads and checks a file of features.

    DataError, with what was expected and what to do, for a damaged or another one.
    """
    arrays = _read_arrays(path)
    try:
        head = json.loads(bytes(arrays.pop(HEAD)))
        ids, values = json.loads(bytes(arrays[ITEMS])), arrays[VALUES]
        version, encoder, digest = head["format"], head["encoder"], head["digest"]
    except (KeyError, TypeError, ValueError):
        raise _refuse(path, "arrays head, items and values of `lpsfed encode`", "others") from None
    if version != FORMAT:
        raise _refuse(path, f"format {FORMAT!r}", repr(str(version)[:40]))
    if _digest_arrays(encoder, arrays) != digest:
        raise _refuse(path, f"content of digest {str(digest)[:16]}, as the head says", "another one: it is damaged")
    if not isinstance(ids, list) or len(ids) != len(set(ids)) or not all(isinstance(one, str) for one in ids):
        raise _refuse(path, "each item id once, as text", "others")
    if values.ndim != 2 or len(values) != len(ids) or values.shape[1] < 1 or not np.isfinite(values).all():
        raise _refuse(path, f"a finite vector of each of {len(ids):,} items", f"an array of {values.shape}")
    state = {name.removeprefix(STATE): array for name, array in arrays.items() if name.startswith(STATE)}
    try:
        make_encoder(encoder, state)
    except ValueError as error:
        expected, _, got = str(error).partition(", got ")
        raise _refuse(path, expected, got) from None
    return FeatureFile(tuple(ids), values.astype(np.float32), encoder, state)


def align_rows(features: FeatureFile, item_ids: Sequence[str]) -> tuple[Float32, NDArray[np.bool_]]:
    """Finds the vectors of some items, and which of them the file has.

    Returns (N, d), zero for an item that the file lacks, and (N,).
    """
    places = {item: place for place, item in enumerate(features.item_ids)}
    rows = np.array([places.get(item, -1) for item in item_ids], dtype=np.int64)
    found = np.zeros((len(item_ids), features.values.shape[1]), dtype=np.float32)
    found[rows >= 0] = features.values[rows[rows >= 0]]
    return found, rows >= 0


def _read_arrays(path: Path) -> Arrays:
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(path))) as archive:
            if sum(one.file_size for one in archive.infolist()) > MOST_BYTES:
                raise _refuse(path, f"at most {MOST_BYTES:,} bytes when unpacked", "more")
            return {
                one.removesuffix(".npy"): read_array(io.BytesIO(archive.read(one)), allow_pickle=False)
                for one in archive.namelist()
            }
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise _refuse(path, "an npz archive of plain arrays", "something else") from None


def _digest_arrays(encoder: str, arrays: Arrays) -> str:
    digest = hashlib.sha256(f"{encoder}\n".encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype.str} {arrays[name].shape}\n".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _refuse(path: Path, expected: str, got: str) -> DataError:
    return DataError(f"{path}: expected {expected}, got {got}: make it anew by `lpsfed encode`")
