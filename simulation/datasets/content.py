"""Readers of bytes, text and lines of a plain or gzipped file.

An unreadable file raises DataError with file and line.
"""

from __future__ import annotations

from pathlib import Path

from client_service.data.files import decode_text, read_bytes, unpack_content
from shared.errors import DataError


def format_extension(path: Path) -> str:
    """Returns the extension that names the format, such as "csv" of ratings.csv.gz."""
    return Path(path.name.removesuffix(".gz")).suffix.lstrip(".").lower()


def file_stem(path: Path) -> str:
    """Returns the file's name without .gz and without the extension."""
    return Path(path.name.removesuffix(".gz")).stem


def line_error(path: Path, line: int, message: str) -> DataError:
    """Builds the error for one line (from 1) of a file."""
    return DataError(f"{path}: line {line}: {message}")


def read_content(path: Path) -> bytes:
    """Reads a file's bytes, unpacked; raises DataError for an empty file."""
    data = unpack_content(path, read_bytes(path))
    if not data.strip():
        raise line_error(path, 1, "expected data, got an empty file")
    return data


def read_text(path: Path, *, latin: bool = False) -> str:
    r"""Reads a file's text with "\n" as line end.

    latin: allow latin-1, as MovieLens' title files are in some editions.
    """
    return decode_text(path, read_content(path), latin=latin)


def split_lines(whole: str) -> list[str]:
    """Splits text into lines, without empty ones at the end."""
    return whole.rstrip("\n").split("\n")
