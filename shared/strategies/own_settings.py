"""A strategy's own settings: a validated model, filled from the run's settings."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict

from shared.errors import SettingsError
from shared.method.settings import MethodSettings, validate_settings


class OwnSettings(BaseModel):
    """What only one strategy knows. A strategy declares its fields; this one has none."""

    model_config = ConfigDict(frozen=True, extra="forbid")


Own = TypeVar("Own", bound=OwnSettings)


def read_own(model: type[Own], method: MethodSettings) -> Own:
    """The strategy's settings in a run. SettingsError names each field that is unknown or out of range."""
    try:
        return validate_settings(model, dict(method.strategy))
    except SettingsError as error:
        known = ", ".join(model.model_fields) or "no setting of its own"
        raise SettingsError(f"strategy: expected {known}; {error}") from None
