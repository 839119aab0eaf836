"""Settings of a service from the environment and arguments, with one-line errors."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource
from pydantic_settings import SettingsError as SourceError

from shared.errors import SettingsError
from shared.faults import UNKNOWN_SETTING, describe_fault, describe_safely

Settings = TypeVar("Settings", bound=BaseSettings)
# What Kubernetes tells every pod of each service in its namespace: of one called lpsfed-client all would begin with
# the prefix of a client's settings.
SERVICE_LINK = re.compile(r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
LEAST_SIMILARITY = 0.85  # least similarity of two names for a suggestion; high, because all have the same prefix
LINK_ADDRESS = re.compile(r"(tcp|udp|sctp)://\S+")


class EnvironmentSettings(BaseSettings):
    """Settings that ignore the variables which Kubernetes sets for services.

    Also where such a variable has a setting's name: `LPSFED_CLIENT_PORT=tcp://10.0.0.5:8801` of a service called
    lpsfed-client.
    """

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *sources: Any, **named: PydanticBaseSettingsSource
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Returns pydantic's sources, the environment without Kubernetes' service links."""
        found = super().settings_customise_sources(settings_cls, *sources, **named)
        prefix = str(settings_cls.model_config["env_prefix"])
        for source in found:
            if isinstance(source, EnvSettingsSource):
                source.env_vars = {n: v for n, v in source.env_vars.items() if not is_service_link(n, v, prefix)}
        return found


def read_settings(model: type[Settings], values: dict[str, Any]) -> Settings:
    """Reads settings from `values` and the environment; `values` come first.

    Raises SettingsError that names each wrong field, without its value, which may be a secret; and each unknown
    variable with the settings' prefix, with the likely name.
    """
    if unknown := _list_unknown_settings(model):
        raise SettingsError("; ".join(unknown))
    try:
        return model(**values)
    except ValidationError as error:
        lines = [_describe_fault(tuple(map(str, e["loc"])), e, model) for e in error.errors()]
        raise SettingsError("; ".join(lines)) from None
    except SourceError as error:
        raise SettingsError(str(error)) from None


def _describe_fault(place: tuple[str, ...], error: Mapping[str, Any], model: type[BaseSettings]) -> str:
    """Returns one line that begins with the name of the setting at fault."""
    said = describe_fault(error, describe_safely, UNKNOWN_SETTING)
    named = said.partition(":")[0]
    return said if not place or (named in model.model_fields and named != place[0]) else f"{'.'.join(place)}: {said}"


def _list_unknown_settings(model: type[BaseSettings]) -> list[str]:
    """Lists a line for each variable with the prefix that is no setting."""
    prefix, mark = str(model.model_config["env_prefix"]), str(model.model_config["env_nested_delimiter"])
    known = [prefix + name.upper() for name in model.model_fields]
    given = [
        name
        for name, value in os.environ.items()
        if name.upper().startswith(prefix) and not is_service_link(name, value, prefix)
    ]
    return [
        _describe_unknown_setting(name, known) for name in sorted(given) if name.upper().partition(mark)[0] not in known
    ]


def is_service_link(name: str, value: str | None, prefix: str) -> bool:
    """Tells whether Kubernetes sets this variable for a service with the settings' prefix."""
    rest = name.upper().removeprefix(prefix.upper())
    address = re.fullmatch("(.+_)?PORT", rest) and LINK_ADDRESS.fullmatch(value or "")
    return bool(address or SERVICE_LINK.fullmatch(rest))


def _describe_unknown_setting(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name.upper(), known, n=1, cutoff=LEAST_SIMILARITY)
    return f"{name}: expected the name of a setting, got an unknown name" + "".join(f"; likely {one}" for one in near)
