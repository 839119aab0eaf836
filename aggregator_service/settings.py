"""Environment and arguments -> the aggregator's settings: one place for every default and its meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from shared.errors import ProtocolError
from shared.schemas import Declaration
from shared.settings import MethodSettings
from shared.strategies import STRATEGIES, build_strategy
from shared.web.access import BODY_SECONDS
from shared.web.credentials import chosen_secret, require_own
from shared.web.environment import read_settings
from shared.web.listening import Listening

LEAST_TOKEN = 16  # characters; a shorter operator token could be guessed


class AggregatorSettings(Listening):
    """Settings of one aggregator. Each comes from LPSFED_AGGREGATOR_<NAME> or from the constructor."""

    model_config = SettingsConfigDict(
        env_prefix="LPSFED_AGGREGATOR_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    state_directory: Path = Field(description="database and blobs; a restart resumes from it")
    operator_token: SecretStr | None = Field(None, description="secret of the operator's calls")
    operator_token_file: Path | None = Field(None, description="a file whose content is that secret")
    keys_directory: Path | None = Field(None, description="public keys <client>.pub; else `keys` with the state")
    signature_seconds: int = Field(60, ge=1, le=3600, description="by which clocks may differ, and a request be late")
    strategy: str = "lpsfed"
    method: MethodSettings = Field(MethodSettings(), description="width and layers fix what is exchanged")
    max_upload_bytes: int = Field(64 << 20, ge=1, description="limit of one update's body")
    retention_rounds: int = Field(2, ge=1, description="rounds that stay available; older blobs are deleted")
    longest_wait_seconds: float = Field(30.0, ge=0, le=300, description="limit of one long poll")
    longest_body_seconds: float = Field(BODY_SECONDS, gt=0, le=3600, description="limit of a body's way here")
    port: int = Field(8800, ge=0, le=65535)
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("strategy")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in STRATEGIES:
            raise ValueError(f"expected one of {', '.join(STRATEGIES)}, got {name!r}")
        return name

    @model_validator(mode="after")
    def _usable_token(self) -> Self:
        token = chosen_secret("operator_token", self.operator_token, self.operator_token_file, LEAST_TOKEN)
        if token is None:
            raise ValueError("operator_token: expected either it or operator_token_file, got neither")
        if not self.demo:
            require_own("operator_token", token)
        return self

    def token(self) -> str:
        """The operator's secret, wherever it lies."""
        return chosen_secret("operator_token", self.operator_token, self.operator_token_file, LEAST_TOKEN) or ""

    @property
    def registry(self) -> Path:
        """The folder of the clients' public keys."""
        return self.keys_directory or self.state_directory / "keys"

    def declaration(self) -> Declaration:
        """What every client of this federation may send, and no more."""
        return build_strategy(self.strategy, self.method).declaration(self.method)

    def require_same_shape(self, method: MethodSettings) -> None:
        """ProtocolError for settings that would exchange other arrays than this federation does."""
        for name in ("width", "layers"):
            ours, theirs = getattr(self.method, name), getattr(method, name)
            if ours != theirs:
                raise ProtocolError(f"method.{name}: expected this federation's {ours}, got {theirs}")


def aggregator_settings(**overrides: Any) -> AggregatorSettings:
    """Settings from the environment with `overrides` on top, or a SettingsError naming each bad field."""
    return read_settings(AggregatorSettings, overrides)
