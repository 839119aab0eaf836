"""A client's TOML file -> the values that the environment leaves to it."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from shared.errors import SettingsError
from shared.web.environment import is_service_link

PREFIX = "LPSFED_CLIENT_"


def read_file_beneath_environment(file: Path | None) -> dict[str, Any]:
    """The file's values but for those that LPSFED_CLIENT_* gives. SettingsError for a file of no use."""
    return _beneath_environment(_read_file(file))


def _beneath_environment(values: dict[str, Any], prefix: str = PREFIX) -> dict[str, Any]:
    """The file's values without those that the environment also gives, because the constructor would win over it."""
    given = {name.upper() for name, value in os.environ.items() if not is_service_link(name, value, PREFIX)}
    found = {}
    for name, value in values.items():
        variable = f"{prefix}{name.upper()}"
        if variable not in given:
            found[name] = _beneath_environment(value, f"{variable}__") if isinstance(value, dict) else value
    return found


def _read_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"settings file {file}: expected readable TOML ({error})") from None
