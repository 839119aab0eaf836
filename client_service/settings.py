"""Environment, file and flags -> the settings of one client, and the silo's own policy."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from client_service.device import DeviceWish
from shared.errors import PrivacyError, SettingsError
from shared.schemas import ClientName, Declaration
from shared.settings import MethodSettings
from shared.strategies import SHARES_ITEMS, STRATEGIES, build_strategy
from shared.strategy import Strategy
from shared.web.access import HOST_NAME
from shared.web.environment import read_settings

HostName = Annotated[str, Field(pattern=f"^{HOST_NAME}$")]


class Policy(BaseModel):
    """What the silo allows, whatever the federation asks for. It can only take away."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strategies: tuple[str, ...] = Field(
        tuple(name for name in STRATEGIES if name not in SHARES_ITEMS),
        description="strategies this silo takes part in; one that shares items must be named",
    )
    scalars: tuple[str, ...] = Field(("margin", "rho"), description="scalars that may leave")
    counts: bool = Field(False, description="may the numbers of users, items and edges be given for the anchor?")
    max_upload_bytes: int = Field(64 << 20, ge=1)


class ClientSettings(BaseSettings):
    """Settings of one client. Each comes from the constructor, from LPSFED_CLIENT_<NAME>, or from a TOML file."""

    model_config = SettingsConfigDict(
        env_prefix="LPSFED_CLIENT_", env_nested_delimiter="__", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    name: ClientName
    shard: Path = Field(description="folder with the silo's interactions.parquet")
    state_directory: Path = Field(description="secret, ledger, spectrum and models")
    cache_directory: Path | None = Field(None, description="what follows from the shard alone; else with the models")
    secret_file: Path | None = Field(None, description="holds the secret; else one is made in the state directory")
    aggregator_url: str = Field("http://127.0.0.1:8800", pattern=r"^https?://[^/?#]+$")
    strategy: str = "lpsfed"
    catalogue: Path | None = Field(None, description="ids of the items that all clients share, one a line")
    method: MethodSettings = Field(MethodSettings(), description="its width and layers fix what may leave")
    policy: Policy = Policy()
    device: DeviceWish = "auto"
    threads: int = Field(1, ge=1, le=256, description="CPU threads of training; part of what makes runs repeatable")
    wait_seconds: float = Field(20.0, gt=0, le=300, description="length of one long poll")
    timeout_seconds: float = Field(30.0, gt=0, le=3600, description="limit of any other call, and of a poll's delay")
    host: str = "127.0.0.1"
    allowed_hosts: tuple[HostName, ...] = Field((), description="more names under which the API may be asked")
    port: int = Field(8801, ge=0, le=65535)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("strategy")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in STRATEGIES:
            raise ValueError(f"expected one of {', '.join(STRATEGIES)}, got {name!r}")
        return name

    def declaration(self) -> Declaration:
        """All that may leave this client: computed here, from the installed strategy and the silo's policy."""
        return allowed(build_strategy(self.strategy, self.method), self.method, self.policy)


def allowed(strategy: Strategy, method: MethodSettings, policy: Policy) -> Declaration:
    """The strategy's declaration, or a PrivacyError when the silo's policy does not allow all of it."""
    if strategy.name not in policy.strategies:
        raise PrivacyError(f"policy: expected a strategy of {list(policy.strategies)}, got {strategy.name!r}")
    if forbidden := set(strategy.scalars) - set(policy.scalars):
        raise PrivacyError(f"policy: strategy {strategy.name!r} sends {sorted(forbidden)}, which this silo forbids")
    return strategy.declaration(method)


def client_settings(file: Path | None = None, **overrides: Any) -> ClientSettings:
    """`overrides` over the environment over a TOML file, or a SettingsError naming each bad field."""
    return read_settings(ClientSettings, {**_beneath_environment(_read_file(file)), **overrides})


def _beneath_environment(values: dict[str, Any], prefix: str = "LPSFED_CLIENT_") -> dict[str, Any]:
    """The file's values without those that the environment also gives, because the constructor would win over it."""
    given, found = {name.upper() for name in os.environ}, {}
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
