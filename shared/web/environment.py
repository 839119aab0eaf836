"""Environment and arguments -> a service's settings, or one clear line."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings
from pydantic_settings import SettingsError as SourceError

from shared.errors import SettingsError

Settings = TypeVar("Settings", bound=BaseSettings)


def read_settings(model: type[Settings], values: dict[str, Any]) -> Settings:
    """`values` over the environment. SettingsError names each bad field, but not what came: it may be a secret."""
    try:
        return model(**values)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}".removeprefix(": ") for e in error.errors()]
        raise SettingsError("; ".join(lines).replace("Value error, ", "")) from None
    except SourceError as error:
        raise SettingsError(str(error)) from None
