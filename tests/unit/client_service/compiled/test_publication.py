"""Which compiled folders answer is one small file that is swapped by one rename."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from client_service.compiled.publication import (
    CURRENT,
    Publication,
    drop_unpublished,
    publish,
    put_folder,
    read_publication,
    write_folder,
)
from shared.errors import DataError

DIGESTS = ("0" * 64, "1" * 64)


def put(serving: Path, kind: str, digest: str, value: float = 0.0) -> Path:
    """A compiled folder with one array in it."""
    with write_folder(serving, kind) as partial:
        np.save(partial / "numbers.npy", np.full(1000, value))
        return put_folder(partial, kind, digest, {"digest": digest})


def name(shard: Path, model: Path | None) -> Publication:
    return Publication(
        task="items",
        shard=shard.name,
        model=None if model is None else model.name,
        shard_digest="a",
        lists_digest="b",
        version="run-1.2",
    )


def test_what_was_published_is_read(tmp_path: Path) -> None:
    """Without a publication there is none; then it is the last one, and a folder has its digest's beginning as name."""
    assert read_publication(tmp_path) is None
    shard, model = put(tmp_path, "shard", DIGESTS[0]), put(tmp_path, "model", DIGESTS[1])
    assert (shard.name, model.name) == (f"shard-{'0' * 16}", f"model-{'1' * 16}")
    publish(tmp_path, name(shard, None))
    publish(tmp_path, name(shard, model))
    assert read_publication(tmp_path) == name(shard, model)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([CURRENT, shard.name, model.name])


def test_a_reader_keeps_what_it_has_mapped_when_another_model_is_published(tmp_path: Path) -> None:
    shard, old = put(tmp_path, "shard", DIGESTS[0]), put(tmp_path, "model", DIGESTS[0], 1.0)
    publish(tmp_path, name(shard, old))
    mapped = np.load(old / "numbers.npy", mmap_mode="r")
    publish(tmp_path, name(shard, put(tmp_path, "model", DIGESTS[1], 2.0)))
    drop_unpublished(tmp_path)
    assert not old.exists()
    assert mapped.sum() == 1000.0


def test_a_folder_that_was_cut_off_is_never_named_and_goes(tmp_path: Path) -> None:
    """A write that ends in the middle leaves no folder; one that a kill has left goes with the next publication."""
    with pytest.raises(OSError, match="full"), write_folder(tmp_path, "model") as partial:
        (partial / "numbers.npy").write_bytes(b"half")
        raise OSError("the disk is full")
    assert list(tmp_path.iterdir()) == []
    killed, headless = tmp_path / ".model-00.partial", tmp_path / f"model-{'1' * 16}"
    for folder in (killed, headless):
        folder.mkdir()
        (folder / "numbers.npy").write_bytes(b"half")
    shard, model = put(tmp_path, "shard", DIGESTS[0]), put(tmp_path, "model", DIGESTS[1])
    assert np.load(model / "numbers.npy").shape == (1000,)
    publish(tmp_path, name(shard, model))
    drop_unpublished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([CURRENT, shard.name, model.name])


def test_a_folder_that_is_there_is_used_again(tmp_path: Path) -> None:
    first = put(tmp_path, "model", DIGESTS[0], 1.0)
    assert put(tmp_path, "model", DIGESTS[0], 2.0) == first
    assert np.load(first / "numbers.npy")[0] == 1.0
    assert list(tmp_path.iterdir()) == [first]


def test_only_folders_that_are_there_are_published(tmp_path: Path) -> None:
    shard = put(tmp_path, "shard", DIGESTS[0])
    with pytest.raises(DataError, match="expected a compiled folder"):
        publish(tmp_path, name(shard, tmp_path / f"model-{'2' * 16}"))
    with pytest.raises(ValidationError):
        name(tmp_path / ".." / "shard", None)
    assert read_publication(tmp_path) is None


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": "lpsfed-serving/2"}', b"\xff"])
def test_a_damaged_publication_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CURRENT).write_bytes(content)
    with pytest.raises(DataError, match=r"expected the format lpsfed-serving/1.*remove the file"):
        read_publication(tmp_path)
