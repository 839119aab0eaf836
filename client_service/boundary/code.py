"""The code on the way out of a client -> one digest a package, by its files.

Another file, or one more, gives another digest. It tells of files, not of what a process has made of them since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

WAY_OUT = ("client_service", "shared", "httpx", "httpcore", "h11", "http_message_signatures")
"""Packages through whose hands every request goes."""
STARTED = ("sitecustomize.py", "usercustomize.py")
"""What Python runs before everything else, wherever it finds it."""
UNREAD = "__pycache__"


def folder_of(package: str) -> Path:
    """Where this process has the package from."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(package)
    return Path(found.origin).parent


def digest_folder(folder: Path) -> str:
    """Over the names and contents of all files beneath; of none where there is no such folder."""
    whole = hashlib.sha256()
    for path in sorted(_files(folder), key=lambda one: one.relative_to(folder).as_posix()):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    return whole.hexdigest()


def code_digests() -> dict[str, str]:
    """Of the code that this process runs."""
    return {package: digest_folder(folder_of(package)) for package in WAY_OUT}


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and UNREAD not in path.relative_to(folder).parts:
            yield path
