"""A path, plain or gzipped -> its bytes, text and lines; what cannot be read is a DataError with file and line."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from shared.errors import DataError

GZIP = b"\x1f\x8b"  # its first two bytes


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
    try:
        packed = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got {error.strerror}") from None
    data = _unpack(path, packed) if packed else packed
    if not data.strip():
        raise line_error(path, 1, "expected data, got an empty file")
    return data


def _unpack(path: Path, packed: bytes) -> bytes:
    """The content of a file that is packed if its name says so, and only then."""
    named, is_gzip = path.name.endswith(".gz"), packed.startswith(GZIP)
    if named and not is_gzip:
        raise DataError(f"{path}: expected a gzip file, got another format: take .gz out of its name")
    if is_gzip and not named:
        raise DataError(f"{path}: expected a plain file, got a gzip file: add .gz to its name")
    try:
        return gzip.decompress(packed) if named else packed
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(f"{path}: expected a whole gzip file, got one that is damaged or not complete") from None


def read_text(path: Path, *, latin: bool = False) -> str:
    """The file as UTF-8 text. MovieLens' title files are latin-1 in some editions: `latin` allows for that."""
    data = read_content(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if latin:
            return data.decode("latin-1")
        line = data.count(b"\n", 0, error.start) + 1
        raise line_error(path, line, f"expected UTF-8 text, got byte 0x{data[error.start]:02x}") from None


def split_lines(whole: str) -> list[str]:
    """Lines without their ends; empty ones at the end of the file do not count."""
    return whole.replace("\r\n", "\n").rstrip("\n").split("\n")
