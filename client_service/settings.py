"""Settings of a client: environment variables override its TOML file."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import httpx
from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from client_service.boundary.policy import Policy, allowed_declaration
from client_service.privacy.settings import PrivacySettings, require_accountable
from client_service.runtime.device import DeviceChoice
from shared.errors import SettingsError
from shared.method.declaration import Declaration
from shared.method.settings import MethodSettings, read_catalogue_size
from shared.protocol.schemas import ClientName
from shared.strategies import STRATEGIES, build_strategy
from shared.strategies.agreement import declare_federation, require_task
from shared.sums import list_sums
from shared.timeouts import ANSWER_SECONDS, CALL_SECONDS, POLL_SECONDS, TIMEOUT_SECONDS, WAIT_SECONDS, CallLimits
from shared.web.address import HOST_NAME, is_loopback, require_url
from shared.web.credentials import read_secret_setting, require_strong_secret
from shared.web.environment import EnvironmentSettings, is_service_link, read_settings
from shared.web.listening import ListenSettings
from shared.web.outgoing import build_proxy

PREFIX = "LPSFED_CLIENT_"


def read_settings_file(file: Path | None) -> dict[str, Any]:
    """Reads a settings file, without the values that LPSFED_CLIENT_* variables override.

    Raises SettingsError for an unreadable file.
    """
    return _drop_environment_values(_read_file(file))


def _drop_environment_values(values: dict[str, Any], prefix: str = PREFIX) -> dict[str, Any]:
    """Drops the values that the environment also gives, because constructor values would win."""
    given = {name.upper() for name, value in os.environ.items() if not is_service_link(name, value, PREFIX)}
    found = {}
    for name, value in values.items():
        variable = f"{prefix}{name.upper()}"
        if variable not in given:
            found[name] = _drop_environment_values(value, f"{variable}__") if isinstance(value, dict) else value
    return found


def _read_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"settings file {file}: expected readable TOML ({error})") from None


LEAST_KEY = 32  # characters; a shorter key could be guessed
KEYS = {"application_key": "lists of recommendations", "operator_key": "status, quality, ledger and pages"}
SENDABLE = re.compile("[!-~]+")  # in a header
ORIGIN = re.compile(rf"https?://(?:{HOST_NAME}|\[[0-9a-f:.]+\])(?::[1-9][0-9]{{0,4}})?")
USUAL_PORT = re.compile("http://.*:80|https://.*:443")
HostName = Annotated[str, Field(pattern=f"^{HOST_NAME}$")]


class ClientSettings(ListenSettings, EnvironmentSettings):
    """Settings of one client: from the constructor, LPSFED_CLIENT_<NAME>, or a TOML file."""

    model_config = SettingsConfigDict(
        env_prefix="LPSFED_CLIENT_", env_nested_delimiter="__", frozen=True, extra="forbid", hide_input_in_errors=True
    )

    name: ClientName = Field(description="name of the client, under which the operator has registered its public key")
    shard: Path = Field(description="folder of the shard, with interactions.parquet")
    task: str = Field(
        "items",
        description=(
            "`items`: top-N recommendation; `sessions`: next item of a [visit](visits.md); `nodes`: "
            "labels of nodes of a graph"
        ),
    )
    state_directory: Path = Field(description="folder of ledger, spectrum and models")
    records_directory: Path | None = Field(
        None,
        description=(
            "folder of the heads of ledger and account, under a MAC; use another volume, so that no "
            "one change can alter both; unset: the state directory"
        ),
    )
    cache_directory: Path | None = Field(
        None,
        description=(
            "cache of what follows from the shard alone: its spectrum, and choices by validation; "
            "unset: the models' folder"
        ),
    )
    signing_key_file: Path | None = Field(
        None,
        description=(
            "the client's private key, PEM; a file that others can read is refused; unset: `NAME.key`"
            " in the state directory"
        ),
    )
    aggregator_url: str = Field(
        "http://127.0.0.1:8800", pattern=r"^https?://[^/?#]+$", description="URL of the aggregator"
    )
    strategy: str = Field(
        "lpsfed", description="strategy, as the aggregator's; it and the method decide what the client may send"
    )
    catalogue: Path | None = Field(
        None,
        description=(
            "list of items that all silos share, one id per line, for a [common basis](sums.md) and "
            "for strategies that share items: `lpsfed catalogue`"
        ),
    )
    matches: Path | None = Field(
        None,
        description=(
            "signed matches of own items to that list: `lpsfed catalogue match`, `join --matches`; they never leave"
        ),
    )
    method: MethodSettings = Field(
        MethodSettings(),
        description=(
            "settings of the method, as the aggregator's, JSON or a `[method]` table: [the method's "
            "settings](#the-method)"
        ),
        validate_default=True,
    )
    secure: bool = Field(
        False,
        description=(
            "updates leave masked, and an open federation is refused: [secure aggregation](secure-aggregation.md)"
        ),
    )
    members: Path | None = Field(
        None,
        description=(
            "file of public keys of the aggregator and all clients, which this silo pins: `lpsfed "
            "members`. Needed with `SECURE`; without `SECURE` the aggregator must then sign its "
            "answers"
        ),
    )
    trust_on_first_use: bool = Field(
        False,
        description=(
            "in place of `MEMBERS`: the first secure run pins members and keys; later names and other"
            " keys need the silo's consent, `lpsfed members accept`: [secure "
            "aggregation](secure-aggregation.md#members-on-first-use)"
        ),
    )
    aggregator_key: str | None = Field(
        None, pattern="^[0-9a-f]{64}$", description="the aggregator's public key, with trust_on_first_use"
    )
    known_members: tuple[ClientName, ...] = Field(
        (), description="names with a key or an invitation when this silo joined, with trust_on_first_use"
    )
    policy: Policy = Field(
        Policy(),
        description=(
            "JSON or a `[policy]` table: what the silo allows, whatever the federation requests: [its"
            " fields](#a-silos-policy)"
        ),
    )
    privacy: PrivacySettings = Field(
        PrivacySettings(),
        description=(
            "JSON or a `[privacy]` table: [differential privacy](privacy.md#differential-privacy) of "
            "updates, which the silo alone decides: [its fields](#differential-privacy-of-updates)"
        ),
    )
    device: DeviceChoice = Field("auto", description="`auto`, `cpu` or `cuda`")
    threads: int = Field(
        1, ge=1, le=256, description="CPU threads of training; runs repeat exactly only with the same number"
    )
    wait_seconds: float = Field(
        WAIT_SECONDS, gt=0, description="longest wait of one poll: [all limits of time](reliability.md#limits-of-time)"
    )
    timeout_seconds: float = Field(TIMEOUT_SECONDS, gt=0, description="longest silence in a step of a call")
    call_seconds: float = Field(
        CALL_SECONDS, gt=0, le=ANSWER_SECONDS, description="longest time of a whole call, with its wait"
    )
    poll_seconds: float = Field(POLL_SECONDS, ge=0, le=60, description="shortest time between equal calls without news")
    allowed_hosts: tuple[HostName, ...] = Field(
        (),
        description=(
            "JSON list of further host names of the API; always allowed: IP addresses, names without "
            "a dot, `*.localhost`, `*.svc`, `*.svc.cluster.local`"
        ),
    )
    allowed_origins: tuple[str, ...] = Field(
        (),
        description=(
            "JSON list of exact origins, such as `https://shop.example`, whose pages may make "
            "applications' calls (CORS); `*` is refused: [from a page](serving.md#from-a-page)"
        ),
    )
    application_key: SecretStr | None = Field(
        None,
        description="key of applications, 32 characters or more; needed except on loopback",
    )
    application_key_file: Path | None = Field(None, description="file with that key")
    operator_key: SecretStr | None = Field(
        None, description=("key of status, quality, spectrum, declaration, ledger and pages; needed except on loopback")
    )
    operator_key_file: Path | None = Field(None, description="file with that key")
    aggregator_authority: Path | None = Field(
        None,
        description="CA bundle (PEM) of the aggregator's certificate; unset: httpx's own",
    )
    outbound_proxy: SecretStr | None = Field(
        None,
        description=(
            "URL of a forward proxy to the aggregator, `http://USER:PASSWORD@HOST:PORT` or "
            "`https://`; proxies of the environment (`HTTPS_PROXY` and others) are ignored: [a proxy "
            "on the way out](operations.md#outbound-proxy)"
        ),
    )
    outbound_proxy_file: Path | None = Field(None, description="file with that URL")
    tls_client_certificate: Path | None = Field(
        None, description="certificate (PEM) for an aggregator that asks for one"
    )
    tls_client_key: Path | None = Field(None, description="private key of it (PEM), without a passphrase")
    port: int = Field(8801, ge=0, le=65535, description="port to listen on")
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description=(
            "number of processes that answer at `PORT`, from one copy of the lists: [answers](operations.md#answers)"
        ),
    )
    least_rating: float | None = Field(
        None,
        allow_inf_nan=False,
        description=(
            "smallest rating that counts as positive in posted interactions; another value than the "
            "shard's is refused ([ratings](data.md#which-ratings-are-positive)); unset: the shard's, or "
            "4"
        ),
    )
    most_interactions: int = Field(
        1_000_000,
        ge=1,
        description=(
            "largest number of logged interactions before a refresh is needed: [new "
            "interactions](operations.md#new-interactions)"
        ),
    )
    most_item_bytes: int = Field(
        64 << 20,
        ge=1,
        description="largest memory of all posted item metadata (`PUT /v1/items/{item}`), in bytes",
    )
    refresh_seconds: float | None = Field(
        None,
        ge=60,
        description=(
            "interval of automatic [refreshes](operations.md#refresh) of shard and model, in seconds; none: off"
        ),
    )
    refresh_interactions: int | None = Field(
        None,
        ge=1,
        description=(
            "number of new positive interactions after which shard and model are "
            "[refreshed](operations.md#refresh); none: off"
        ),
    )
    trainer_idle_seconds: float = Field(
        60.0,
        ge=0,
        description=(
            "idle seconds after which the trainer frees its memory and [waits](operations.md#answers); 0: never"
        ),
    )
    kept_models: int = Field(
        3,
        ge=1,
        le=100,
        description="number of model versions kept, for a [rollback](operations.md#models)",
    )
    fit_everything: bool = Field(
        False,
        description=(
            "the served model, and the silo's part of a [common basis](sums.md), use [all "
            "data](operations.md#all-data); choices and figures still use held-out data. `lpsfed "
            "join` switches it on"
        ),
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="`debug`, `info`, `warning` or `error`"
    )

    @field_validator("aggregator_url")
    @classmethod
    def _check_aggregator_url(cls, url: str) -> str:
        try:
            return require_url(url)
        except SettingsError as error:
            raise ValueError(str(error)) from None

    @field_validator("allowed_origins")
    @classmethod
    def _check_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        """Checks that origins are written as browsers send them."""
        for origin in origins:
            if origin == "*":
                raise ValueError("expected each origin by name, got '*', which would let every web page call this silo")
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
    def _set_catalogue_size(cls, method: MethodSettings, info: ValidationInfo) -> MethodSettings:
        expected = "catalogue: expected a readable text file, one id a line"
        return read_catalogue_size(method, info.data.get("catalogue"), lambda text: len(text.splitlines()), expected)

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        """Checks the keys: a silo that others can reach needs both, and they must differ."""
        found = {name: self.key(name) for name in KEYS}
        keys = {name: key for name, key in found.items() if key is not None}
        if unsendable := [name for name, key in keys.items() if not SENDABLE.fullmatch(key)]:
            raise ValueError(f"{unsendable[0]}: expected printable ASCII characters without spaces, got others")
        if self.demo:
            return self
        if not self.on_loopback and len(keys) < len(KEYS):
            missing = next(name for name in KEYS if name not in keys)
            raise ValueError(
                f"{missing}: expected a key because {self.host!r} is open to others, or demo = true; got neither"
            )
        for name, key in keys.items():
            require_strong_secret(name, key)
        if len(keys) > len(set(keys.values())):
            raise ValueError("operator_key: expected a key that differs from application_key, got the same")
        return self

    @model_validator(mode="before")
    @classmethod
    def _refuse_serving_port(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Refuses the setting serving_port of earlier versions, which had a second port for applications."""
        if "serving_port" in values:
            expected = "expected none: all `workers` answer at `port`"
            raise ValueError(f"serving_port: {expected}; delete the line, and send its requests to `port`")
        return values

    @model_validator(mode="after")
    def _check_workers(self) -> Self:
        if self.workers > 1 and self.port == 0:
            raise ValueError(f"port: expected one that workers = {self.workers} can share, got 0")
        return self

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        """Checks that strategy, method and task fit together."""
        try:
            require_task(build_strategy(self.strategy, self.method), self.method, self.task)
            if self.secure:
                declare_federation(build_strategy(self.strategy, self.method), self.method, secure=True)
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _check_members(self) -> Self:
        """Checks that a silo of secure rounds can verify members and aggregator.

        Masks hide nothing from an aggregator that invents the other members, or from an impostor of the aggregator.
        """
        if self.members is not None and self.trust_on_first_use:
            raise ValueError("trust_on_first_use: expected either it or members, got both")
        for name in ("aggregator_key", "known_members"):
            if getattr(self, name) and not self.trust_on_first_use:
                raise ValueError(f"{name}: expected it only with trust_on_first_use, got it without")
        if not self.secure:
            return self
        if self.members is None and not self.trust_on_first_use:
            raise ValueError("members: expected a file of members (secure), or trust_on_first_use; got neither")
        url = httpx.URL(self.aggregator_url)
        if url.scheme == "http" and not is_loopback(url.host):
            raise ValueError("aggregator_url: expected one that begins with https: (secure), or loopback; got another")
        return self

    @model_validator(mode="after")
    def _check_limits_and_privacy(self) -> Self:
        self.limits().require_possible()
        if self.privacy.is_on:
            require_accountable(build_strategy(self.strategy, self.method), self.method, counts=self.policy.counts)
            if list_sums(self.method):
                summed = ", ".join(list_sums(self.method))
                words = "expected a federation without sums, which noise on updates does not cover"
                raise ValueError(
                    f"privacy: {words}, got sums of {summed}: leave PRIVACY out, or join another federation"
                )
        return self

    @model_validator(mode="after")
    def _check_proxy(self) -> Self:
        if self.proxy() is not None and self.secure and not self.aggregator_url.startswith("https:"):
            raise ValueError("outbound_proxy: expected an aggregator_url that begins with https: (secure), got another")
        return self

    @model_validator(mode="after")
    def _check_tls_client(self) -> Self:
        if (self.tls_client_certificate is None) != (self.tls_client_key is None):
            raise ValueError("tls_client_certificate: expected it and tls_client_key, got one of them")
        given = [name for name in ("aggregator_authority", "tls_client_certificate") if getattr(self, name) is not None]
        if given and not self.aggregator_url.startswith("https:"):
            raise ValueError(f"{given[0]}: expected an aggregator_url that begins with https:, got another")
        return self

    @property
    def models_directory(self) -> Path:
        """Folder of the silo's models and of the measures of its runs."""
        return self.state_directory / "model"

    def key(self, name: str) -> str | None:
        """Returns the key called application_key or operator_key, from settings or file; None without one."""
        return read_secret_setting(name, getattr(self, name), getattr(self, f"{name}_file"), LEAST_KEY)

    def proxy(self) -> httpx.Proxy | None:
        """Returns the proxy to the aggregator; None for a direct connection."""
        return _read_proxy(self.outbound_proxy, self.outbound_proxy_file)

    def list_warnings(self) -> list[str]:
        """Lists warnings of `ListenSettings`, of missing keys, and of an aggregator without https."""
        found = [
            f"without {name} every caller can see {what}: set a key"
            for name, what in KEYS.items()
            if self.key(name) is None
        ]
        url = httpx.URL(self.aggregator_url)
        if url.scheme == "http" and (self.proxy() is not None or not is_loopback(url.host)):
            found.append("without https others can read and change the calls to the aggregator: use an https URL")
        return [*super().list_warnings(), *found]

    def limits(self) -> CallLimits:
        """Returns the time limits of calls to the aggregator."""
        return CallLimits(self.timeout_seconds, self.wait_seconds, self.call_seconds, self.poll_seconds)

    def declaration(self) -> Declaration:
        """Computes the declaration of all that may leave this client.

        It follows from the installed strategy and the silo's policy.
        """
        return allowed_declaration(
            build_strategy(self.strategy, self.method), self.method, self.policy, secure=self.secure
        )


def client_settings(file: Path | None = None, **overrides: Any) -> ClientSettings:
    """Reads the settings: overrides win over the environment, and that over the TOML file.

    Raises SettingsError that names each invalid field.
    """
    return read_settings(ClientSettings, {**read_settings_file(file), **overrides})


def read_outbound_proxy(file: Path | None) -> httpx.Proxy | None:
    """Reads the proxy of a silo whose other settings may not be written yet.

    Raises SettingsError for an invalid one.
    """
    values = read_settings_file(file)
    found = _Outbound(**{name: values[name] for name in _Outbound.model_fields if name in values})
    try:
        return _read_proxy(found.outbound_proxy, found.outbound_proxy_file)
    except ValueError as error:
        raise SettingsError(str(error)) from None


class _Outbound(EnvironmentSettings):
    """Settings of a client that name its outbound proxy."""

    model_config = SettingsConfigDict(env_prefix="LPSFED_CLIENT_", extra="ignore", hide_input_in_errors=True)

    outbound_proxy: SecretStr | None = None
    outbound_proxy_file: Path | None = None


def _read_proxy(value: SecretStr | None, file: Path | None) -> httpx.Proxy | None:
    url = read_secret_setting("outbound_proxy", value, file, 1)
    try:
        return None if url is None else build_proxy(url)
    except ValueError as error:
        raise ValueError(f"outbound_proxy: {error}") from None
