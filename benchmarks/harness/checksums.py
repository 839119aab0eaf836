"""A folder with the full public data sets -> whether they are the published files, by MD5.

The sums are those published for LightGCN's splits (github.com/reczoo/Datasets: Gowalla_m1, Yelp18_m1, AmazonBooks_m1).
MD5 tells a wrong or cut-off file from the right one; it is no protection from a forged one.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from shared.errors import DataError

PUBLISHED = {
    "gowalla": {"train": "5eec1eb2edb8dd648377d348b8e136cf", "test": "c04e2c4bcd2389f53ed8281816166149"},
    "yelp2018": {"train": "1b8b5d22a227e01d6de002c53d32b4c4", "test": "0d57d7399862c32152b045ec5d2698e7"},
    "amazon-book": {"train": "c916ecac04ca72300a016228258b41ed", "test": "30f8ccfea18d25007ba9fb9aba4e174d"},
}
BLOCK = 1 << 20
Found = Literal["as published", "another file", "not there"]


@dataclass(frozen=True)
class VerifiedFile:
    """One published file; `path` is where it was looked for."""

    data: str
    split: str
    path: Path
    found: Found


def verify_data(folder: Path) -> list[VerifiedFile]:
    """Each data set in a folder of its name (gowalla/train.txt), plain or .gz. DataError where `folder` is none."""
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder with the data sets, got none")
    return list(_verify_files(folder))


def _verify_files(folder: Path) -> Iterator[VerifiedFile]:
    for data, sums in PUBLISHED.items():
        for split, published in sums.items():
            path = folder / data / f"{split}.txt"
            packed = path.with_name(f"{path.name}.gz")
            if path.exists() or packed.exists():
                path = path if path.exists() else packed
                yield VerifiedFile(
                    data, split, path, "as published" if md5_digest(path) == published else "another file"
                )
            else:
                yield VerifiedFile(data, split, path, "not there")


def md5_digest(path: Path) -> str:
    """Of the content; of the unpacked content where the name ends in .gz. DataError where it cannot be read."""
    total = hashlib.md5(usedforsecurity=False)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            while block := file.read(BLOCK):
                total.update(block)
    except (OSError, EOFError) as error:
        raise DataError(f"{path}: expected a readable file ({error})") from None
    return total.hexdigest()
