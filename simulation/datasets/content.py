"""A path, plain or gzipped -> its bytes, text and lines; what cannot be read is a DataError with file and line."""

from __future__ import annotations

from pathlib import Path

from client_service.data.files import decode_text, read_bytes, unpack_content
from shared.errors import DataError


def format_extension(path: Path) -> str:
    """The extension that names the format: "csv" of ratings.csv and of ratings.csv.gz."""
    return Path(path.name.removesuffix(".gz")).suffix.lstrip(".").lower()


def file_stem(path: Path) -> str:
    """The file's name without .gz and without the extension."""
    return Path(path.name.removesuffix(".gz")).stem


def line_error(path: Path, line: int, message: str) -> DataError:
    """The error for one line (from 1) of a file."""
    return DataError(f"{path}: line {line}: {message}")


def read_content(path: Path) -> bytes:
    """The file's bytes, unpacked; never empty."""
    data = unpack_content(path, read_bytes(path))
    if not data.strip():
        raise line_error(path, 1, "expected data, got an empty file")
    return data


def read_text(path: Path, *, latin: bool = False) -> str:
    """The file's text, its lines ending in "\\n". MovieLens' title files are latin-1 in some editions: `latin` allows
    for that."""
    return decode_text(path, read_content(path), latin=latin)


def split_lines(whole: str) -> list[str]:
    """Lines without their ends; empty ones at the end of the file do not count."""
    return whole.rstrip("\n").split("\n")
