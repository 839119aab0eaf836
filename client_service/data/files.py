"""Reads files within the available memory, and replaces several files at once."""

from __future__ import annotations

import codecs
import fcntl
import gzip
import io
import os
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from shared import memory
from shared.errors import DataError
from shared.files import make_private_folder, sync_path, write_file

GZIP = b"\x1f\x8b"  # its first two bytes
CELL_BYTES = 32  # of memory that one cell of a table takes, while it is read and cleaned
TEXT_SHARE, TABLE_SHARE = 8, 2  # one byte of usable memory in so many may be unpacked text, or cells of a table


def read_bytes(path: Path) -> bytes:
    """Reads a regular file.

    Raises DataError that names it. A pipe or a device is refused: it may never end, or never give anything.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise DataError(f"{path}: expected a regular file, got {_describe_kind(found.st_mode)}")
            _require_memory(path, found.st_size)
            return file.read()
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, got {error.strerror}") from None


def _describe_kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a pipe" if stat.S_ISFIFO(mode) else "a device"


def _require_memory(path: Path, size: int) -> None:
    if size > (most := memory.usable_memory() // TABLE_SHARE):
        expected = f"expected at most {most:,} bytes, half of this machine's memory"
        raise DataError(f"{path}: {expected}, got {size:,}: divide the file")


def require_text_memory(path: Path, text: str, separator: str) -> None:
    """Raises DataError, before a line is split, for text with too many cells.

    Each line counts as three cells more: of itself, of its number, and of the list of its fields.
    """
    cells = text.count(separator) + 4 * (text.count("\n") + 1)
    if cells > (most := memory.usable_memory() // TABLE_SHARE // CELL_BYTES):
        expected = f"expected lines of at most {most:,} fields together, for which this machine has memory"
        raise DataError(f"{path}: {expected}, got {cells:,}, with the lines: divide the file")


def unpack_content(path: Path, packed: bytes) -> bytes:
    """Unpacks the content of a file named .gz; other content stays as it is.

    Raises DataError if name and content differ, for a damaged file, and for one that was packed twice.
    """
    named, is_gzip = path.name.endswith(".gz"), packed.startswith(GZIP)
    if not packed:
        return packed
    if named and not is_gzip:
        raise DataError(f"{path}: expected a gzip file, got another format: take .gz out of its name")
    if is_gzip and not named:
        raise DataError(f"{path}: expected a plain file, got a gzip file: add .gz to its name")
    try:
        content = _unpack_gzip(path, packed) if named else packed
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise DataError(f"{path}: expected a whole gzip file, got one that is damaged or not complete") from None
    if named and content.startswith(GZIP):
        raise DataError(f"{path}: expected a file packed once, got a gzip file inside a gzip file: unpack it once")
    return content


def _unpack_gzip(path: Path, packed: bytes) -> bytes:
    """Unpacks gzip content; raises DataError once it exceeds the memory's share."""
    most = memory.usable_memory() // TEXT_SHARE
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        content = file.read(most + 1)
    if len(content) > most:
        expected = f"expected at most {most:,} bytes when unpacked, an eighth of this machine's memory"
        raise DataError(f"{path}: {expected}, got more: divide the file")
    return content


def decode_text(path: Path, data: bytes, *, latin: bool = False) -> str:
    r"""Decodes UTF-8 or UTF-16, with or without a byte order mark.

    Lines of the result end in a line feed alone. latin: other text is read as latin-1. Raises DataError with the line
    of the first wrong byte, and for text larger than the memory allows.
    """
    if len(data) > (most := memory.usable_memory() // TEXT_SHARE):
        expected = f"expected text of at most {most:,} bytes, an eighth of this machine's memory"
        raise DataError(f"{path}: {expected}, got {len(data):,}: divide the file")
    encoding = _find_encoding(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if not latin or encoding != "utf-8-sig":
            line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
            word = "UTF-8" if encoding == "utf-8-sig" else "UTF-16"
            raise DataError(f"{path}: line {line}: expected {word} text, got byte 0x{byte:02x}") from None
        text = data.decode("latin-1")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    return text if "\n" in text else text.replace("\r", "\n")


def _find_encoding(data: bytes) -> str:
    """Finds the encoding of text: UTF-8, or UTF-16 as tools of Windows write it.

    In UTF-16 every other byte of Latin letters is 0.
    """
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = data[:64:2], data[1:64:2]
    if len(odd) > 1 and not any(odd) and all(even):
        return "utf-16-le"
    return "utf-16-be" if len(odd) > 1 and not any(even) and all(odd) else "utf-8-sig"


def read_lines(path: Path) -> list[str]:
    """Reads the non-empty lines of a text file, plain or .gz.

    Raises DataError for one that cannot be read.
    """
    text = decode_text(path, unpack_content(path, read_bytes(path)))
    return [line for line in text.split("\n") if line]


STAGED, COMMITTED, LOCK = ".staged", ".committed", ".lock"


def current_file(folder: Path, name: str) -> Path:
    """Returns the path of a file's committed content."""
    committed = folder / COMMITTED / name
    return committed if committed.exists() else folder / name


def commit_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replaces files of a folder, all or none; durable when this returns."""
    make_private_folder(folder)
    finish_commit(folder)
    drop_staged(folder)
    staged = folder / STAGED
    make_private_folder(staged)
    for name, content in files.items():
        write_file(staged / name, content)
        sync_path(staged / name)
    sync_path(staged)
    staged.rename(folder / COMMITTED)
    sync_path(folder)
    finish_commit(folder)


def drop_staged(folder: Path) -> None:
    """Removes the files of a change that was interrupted before its commit."""
    shutil.rmtree(folder / STAGED, ignore_errors=True)


def finish_commit(folder: Path) -> None:
    """Moves committed files to their places after an interrupted change."""
    committed = folder / COMMITTED
    if not committed.is_dir():
        return
    for path in sorted(committed.iterdir()):
        path.replace(folder / path.name)
    sync_path(folder)
    committed.rmdir()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keeps other processes from changing a folder.

    Raises DataError if another process changes it, and if it cannot be written.
    """
    try:
        lock = (folder / LOCK).open("w", encoding="utf-8")
    except OSError as error:
        raise DataError(f"{folder}: expected a shard that can be written, got {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise DataError(f"{folder}: expected a shard that nobody else is changing") from None
        yield
