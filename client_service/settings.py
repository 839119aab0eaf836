"""Environment, file and flags -> the settings of one client, and the silo's own policy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import httpx
from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from client_service.device import DeviceWish
from client_service.policy import Policy, allowed_declaration
from client_service.privacy.settings import PrivacySettings, require_accountable
from client_service.settings_file import read_file_beneath_environment
from shared.errors import SettingsError
from shared.method.catalogue_size import with_catalogue_size
from shared.method.declaration import Declaration
from shared.method.settings import MethodSettings
from shared.protocol.schemas import ClientName
from shared.strategies import STRATEGIES, build_strategy
from shared.strategies.agreement import declare_federation, require_task
from shared.timeouts import ANSWER_SECONDS, CALL_SECONDS, POLL_SECONDS, TIMEOUT_SECONDS, WAIT_SECONDS, CallLimits
from shared.web.access import HOST_NAME
from shared.web.address import require_url
from shared.web.calling import build_proxy
from shared.web.credentials import chosen_secret, require_own
from shared.web.environment import EnvironmentSettings, read_settings
from shared.web.listening import Listening
from shared.web.loopback import is_loopback

LEAST_KEY = 32  # characters; a shorter key could be guessed
KEYS = {"application_key": "lists of recommendations", "operator_key": "status, quality, ledger and pages"}
SENDABLE = re.compile("[!-~]+")  # in a header
ORIGIN = re.compile(rf"https?://(?:{HOST_NAME}|\[[0-9a-f:.]+\])(?::[1-9][0-9]{{0,4}})?")
USUAL_PORT = re.compile("http://.*:80|https://.*:443")
HostName = Annotated[str, Field(pattern=f"^{HOST_NAME}$")]


class ClientSettings(Listening):
    """Settings of one client. Each comes from the constructor, from LPSFED_CLIENT_<NAME>, or from a TOML file."""

    model_config = SettingsConfigDict(
        env_prefix="LPSFED_CLIENT_", env_nested_delimiter="__", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    name: ClientName
    shard: Path = Field(description="folder with the silo's interactions.parquet")
    task: str = Field("items", description="what is learnt from the shard: a name of the registry of tasks")
    state_directory: Path = Field(description="ledger, spectrum and models")
    records_directory: Path | None = Field(
        None, description="where the heads of ledger and account are kept; else with them"
    )
    cache_directory: Path | None = Field(None, description="what follows from the shard alone; else with the models")
    signing_key_file: Path | None = Field(None, description="private key, PEM; else <name>.key in the state directory")
    aggregator_url: str = Field("http://127.0.0.1:8800", pattern=r"^https?://[^/?#]+$")
    strategy: str = "lpsfed"
    catalogue: Path | None = Field(None, description="ids of the items that all clients share, one a line")
    method: MethodSettings = Field(
        MethodSettings(),
        description="its width and layers fix what may leave; its catalogue, if left out, follows from the list",
        validate_default=True,
    )
    secure: bool = Field(False, description="what leaves is masked; an aggregator that would see it is refused")
    members: Path | None = Field(None, description="keys of the aggregator and of all clients: `lpsfed members`")
    trust_on_first_use: bool = Field(
        False, description="without members: pin who takes part in the first secure run; later names need consent"
    )
    aggregator_key: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="the aggregator's public key, with trust_on_first_use"
    )
    known_members: tuple[ClientName, ...] = Field(
        (), description="with trust_on_first_use: who had a key or an invitation when this silo joined"
    )
    policy: Policy = Policy()
    privacy: PrivacySettings = Field(PrivacySettings(), description="noise on what leaves; the silo's choice alone")
    device: DeviceWish = "auto"
    threads: int = Field(1, ge=1, le=256, description="CPU threads of training; part of what makes runs repeatable")
    wait_seconds: float = Field(WAIT_SECONDS, gt=0, description="length of one long poll")
    timeout_seconds: float = Field(TIMEOUT_SECONDS, gt=0, description="silence in one step of a call")
    call_seconds: float = Field(CALL_SECONDS, gt=0, le=ANSWER_SECONDS, description="one whole call, with its wait")
    poll_seconds: float = Field(
        POLL_SECONDS, ge=0, le=60, description="least time between calls alike that were answered at once"
    )
    allowed_hosts: tuple[HostName, ...] = Field((), description="more names under which the API may be asked")
    allowed_origins: tuple[str, ...] = Field((), description="of pages elsewhere that may call as applications do")
    application_key: SecretStr | None = Field(None, description="secret of those who ask for recommendations")
    application_key_file: Path | None = Field(None, description="a file whose content is that secret")
    operator_key: SecretStr | None = Field(None, description="secret of the silo's operator: status, ledger, pages")
    operator_key_file: Path | None = Field(None, description="a file whose content is that secret")
    aggregator_authority: Path | None = Field(None, description="PEM; the aggregator's certificate must be of these")
    outbound_proxy: SecretStr | None = Field(None, description="URL of a proxy that leads to the aggregator")
    outbound_proxy_file: Path | None = Field(None, description="a file whose content is that URL")
    tls_client_certificate: Path | None = Field(None, description="PEM; shown to an aggregator that asks for one")
    tls_client_key: Path | None = Field(None, description="PEM, its private key, without a passphrase")
    port: int = Field(8801, ge=0, le=65535)
    workers: int = Field(0, ge=0, le=64, description="processes beside this one that answer at serving_port")
    serving_port: int | None = Field(None, ge=1, le=65535, description="of these, for applications alone")
    least_rating: float | None = Field(
        None,
        allow_inf_nan=False,
        description="of a posted interaction, to count as a liking: by default the shard's, or 4",
    )
    most_interactions: int = Field(1_000_000, ge=1, description="that may come before the shard absorbs them")
    most_item_bytes: int = Field(64 << 20, ge=1, description="of what applications say of items, all together")
    refresh_seconds: float | None = Field(
        None, ge=60, description="between two refreshes of shard and model; none: never"
    )
    refresh_interactions: int | None = Field(
        None, ge=1, description="new ones after which they are refreshed; none: never"
    )
    kept_models: int = Field(
        3, ge=1, le=100, description="the served one, and those of the runs and refreshes before it: so many in all"
    )
    fit_everything: bool = Field(
        False, description="answers come from all data: choices by held-out data, then fitted again on everything"
    )
    approximate_beyond: int | None = Field(None, ge=1, description="more items are searched, nearly; none: never")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("aggregator_url")
    @classmethod
    def _callable(cls, url: str) -> str:
        try:
            return require_url(url)
        except SettingsError as error:
            raise ValueError(str(error)) from None

    @field_validator("allowed_origins")
    @classmethod
    def _exact(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """As browsers send them, or they would never match."""
        for origin in origins:
            if origin == "*":
                raise ValueError("expected each origin by name, got '*', by which pages of anybody could ask this silo")
            if not ORIGIN.fullmatch(origin) or origin != origin.lower() or USUAL_PORT.fullmatch(origin):
                form = "https://NAME or https://NAME:PORT (or http://) in lower case, without a path and a usual port"
                raise ValueError(f"expected {form}, as browsers send it, got {origin!r}")
        return origins

    @field_validator("strategy")
    @classmethod
    def _check_strategy(cls, name: str) -> str:
        if name not in STRATEGIES:
            raise ValueError(f"expected one of {', '.join(STRATEGIES)}, got {name!r}")
        return name

    @field_validator("method")
    @classmethod
    def _as_long_as_the_list(cls, method: MethodSettings, info: ValidationInfo) -> MethodSettings:
        expected = "catalogue: expected a readable text file, one id a line"
        return with_catalogue_size(method, info.data.get("catalogue"), lambda text: len(text.splitlines()), expected)

    @model_validator(mode="after")
    def _usable_keys(self) -> Self:
        """Who can be reached by others needs both keys, and keys of its own."""
        found = {name: self.key(name) for name in KEYS}
        keys = {name: key for name, key in found.items() if key is not None}
        if unsendable := [name for name, key in keys.items() if not SENDABLE.fullmatch(key)]:
            raise ValueError(f"{unsendable[0]}: expected printable ASCII characters without spaces, got others")
        if self.demo:
            return self
        if not self.on_loopback and len(keys) < len(KEYS):
            missing = next(name for name in KEYS if name not in keys)
            raise ValueError(f"{missing}: expected one where others can call ({self.host!r}), or demo; got neither")
        for name, key in keys.items():
            require_own(name, key)
        if len(keys) > len(set(keys.values())):
            raise ValueError("operator_key: expected another one than application_key, got the same")
        return self

    @model_validator(mode="after")
    def _served_apart(self) -> Self:
        if self.workers and self.serving_port is None:
            raise ValueError(f"serving_port: expected one for workers = {self.workers}, got none")
        if self.serving_port is not None and self.serving_port == self.port:
            raise ValueError(f"serving_port: expected another one than port, got {self.port} for both")
        return self

    @model_validator(mode="after")
    def _summable(self) -> Self:
        """What cannot be secure, or cannot learn from the silo's data, is found at the start."""
        try:
            require_task(build_strategy(self.strategy, self.method), self.method, self.task)
            if self.secure:
                declare_federation(build_strategy(self.strategy, self.method), self.method, secure=True)
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _knows_its_peers(self) -> Self:
        """Masks hide nothing from an aggregator that invents the peers, or from somebody who plays the aggregator."""
        if self.members is not None and self.trust_on_first_use:
            raise ValueError("trust_on_first_use: expected it or members, got both")
        for name in ("aggregator_key", "known_members"):
            if getattr(self, name) and not self.trust_on_first_use:
                raise ValueError(f"{name}: expected it with trust_on_first_use alone")
        if not self.secure:
            return self
        if self.members is None and not self.trust_on_first_use:
            raise ValueError("members: expected a file of members (secure), or trust_on_first_use; got neither")
        url = httpx.URL(self.aggregator_url)
        if url.scheme == "http" and not is_loopback(url.host):
            raise ValueError("aggregator_url: expected one that begins with https: (secure), or loopback; got another")
        return self

    @model_validator(mode="after")
    def _possible(self) -> Self:
        self.limits().require_possible()
        if self.privacy.on:
            require_accountable(build_strategy(self.strategy, self.method), self.method, counts=self.policy.counts)
            if self.method.basis.kind != "off":
                raise ValueError("privacy: expected basis.kind = 'off', because the sums of a basis are not noised")
        return self

    @model_validator(mode="after")
    def _way_by_proxy(self) -> Self:
        if self.proxy() is not None and self.secure and not self.aggregator_url.startswith("https:"):
            raise ValueError("outbound_proxy: expected an aggregator_url that begins with https: (secure), got another")
        return self

    @model_validator(mode="after")
    def _way_by_tls(self) -> Self:
        if (self.tls_client_certificate is None) != (self.tls_client_key is None):
            raise ValueError("tls_client_certificate: expected it and tls_client_key, got one of them")
        given = [name for name in ("aggregator_authority", "tls_client_certificate") if getattr(self, name) is not None]
        if given and not self.aggregator_url.startswith("https:"):
            raise ValueError(f"{given[0]}: expected an aggregator_url that begins with https:, got another")
        return self

    @property
    def models_directory(self) -> Path:
        """Where the silo's models and the figures of its runs are kept."""
        return self.state_directory / "model"

    def key(self, name: str) -> str | None:
        """The secret that is called application_key or operator_key, wherever it lies; None where there is none."""
        return chosen_secret(name, getattr(self, name), getattr(self, f"{name}_file"), LEAST_KEY)

    def proxy(self) -> httpx.Proxy | None:
        """What leads to the aggregator, wherever its URL lies; None where the way is direct."""
        return _choose_proxy(self.outbound_proxy, self.outbound_proxy_file)

    def cautions(self) -> list[str]:
        """As `Listening.cautions`, and what is open to whoever calls, and the way to the aggregator."""
        found = [
            f"without {name} whoever calls may see {what}" for name, what in KEYS.items() if self.key(name) is None
        ]
        url = httpx.URL(self.aggregator_url)
        if url.scheme == "http" and (self.proxy() is not None or not is_loopback(url.host)):
            found.append("without https whoever is on the way to the aggregator reads and changes what is said there")
        return [*super().cautions(), *found]

    def for_replica(self) -> Self:
        """Those of a process that answers applications beside the one that trains: SettingsError without its port."""
        if self.serving_port is None:
            raise SettingsError("serving_port: expected one for a replica, got none")
        return self.model_copy(update={"port": self.serving_port, "device": "cpu"})

    def limits(self) -> CallLimits:
        """How long the calls to the aggregator may take."""
        return CallLimits(self.timeout_seconds, self.wait_seconds, self.call_seconds, self.poll_seconds)

    def declaration(self) -> Declaration:
        """All that may leave this client: computed here, from the installed strategy and the silo's policy."""
        return allowed_declaration(
            build_strategy(self.strategy, self.method), self.method, self.policy, secure=self.secure
        )


def client_settings(file: Path | None = None, **overrides: Any) -> ClientSettings:
    """`overrides` over the environment over a TOML file, or a SettingsError naming each bad field."""
    return read_settings(ClientSettings, {**read_file_beneath_environment(file), **overrides})


def read_outbound_proxy(file: Path | None) -> httpx.Proxy | None:
    """As `ClientSettings.proxy`, of a silo whose other settings may not be written yet. SettingsError for another
    form."""
    values = read_file_beneath_environment(file)
    found = _Outbound(**{name: values[name] for name in _Outbound.model_fields if name in values})
    try:
        return _choose_proxy(found.outbound_proxy, found.outbound_proxy_file)
    except ValueError as error:
        raise SettingsError(str(error)) from None


class _Outbound(EnvironmentSettings):
    """The two of a client's settings that name its proxy."""

    model_config = SettingsConfigDict(env_prefix="LPSFED_CLIENT_", extra="ignore", hide_input_in_errors=True)

    outbound_proxy: SecretStr | None = None
    outbound_proxy_file: Path | None = None


def _choose_proxy(value: SecretStr | None, file: Path | None) -> httpx.Proxy | None:
    url = chosen_secret("outbound_proxy", value, file, 1)
    try:
        return None if url is None else build_proxy(url)
    except ValueError as error:
        raise ValueError(f"outbound_proxy: {error}") from None
