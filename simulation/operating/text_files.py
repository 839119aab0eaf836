"""Small text files that a command reads: a key, a token, a certificate."""

from __future__ import annotations

from pathlib import Path

from shared.errors import SettingsError


def read_small_file(file: Path, what: str) -> str:
    """Reads ASCII text without blanks around it.

    what: its content, for the words of the SettingsError, which says whether the file is missing, empty or no text.
    """
    try:
        text = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise SettingsError(f"{file}: expected a file with {what}, got: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{file}: expected {what} in the file, got bytes that are no ASCII text") from None
    if not text:
        raise SettingsError(f"{file}: expected {what} in the file, got nothing")
    return text
