"""What a secure round began with for all its members <-> a file, for a strategy that reports changes from there.

A client goes on from its own mixture (Eq. 14), which no two share. Two rounds are kept: the one at hand, and
the one before, whose message may have to be sent again after a crash.
"""

from __future__ import annotations

from pathlib import Path

from shared.errors import PrivacyError
from shared.method.exchanged import Parameters
from shared.new_files import PRIVATE, replace_file
from shared.protocol.secure.common import digest_start
from shared.protocol.wire import encode, open_parameters


def keep_start(folder: Path, number: int, given: Parameters) -> None:
    """Round `number` begins with these. Durable when this returns; the file of round `number` - 2 is replaced."""
    replace_file(_path(folder, number), encode(given), PRIVATE)


def kept_start(folder: Path, number: int, digest: str) -> Parameters:
    """What round `number` began with. PrivacyError unless it has this digest: another base is another report."""
    path = _path(folder, number)
    found = open_parameters(path)[1] if path.is_file() else None
    if found is None or digest_start(found) != digest:
        raise PrivacyError(f"{path.name}: expected what round {number} began with, got another content or none")
    return found


def _path(folder: Path, number: int) -> Path:
    return folder / f"secure_start_{number % 2}.safetensors"
