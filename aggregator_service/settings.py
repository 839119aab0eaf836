"""Settings of the aggregator: one place for every default and its meaning."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_settings import SettingsConfigDict
from sqlalchemy import URL

from aggregator_service.rounds.secure_run import PARTS
from aggregator_service.storage.engines.postgresql import read_url
from aggregator_service.storage.objects import read_place
from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import Declaration, describe_difference
from shared.method.settings import BasisSettings, MethodSettings, read_catalogue_size, validate_settings
from shared.protocol.item_list import ItemListOut, pack_item_list, read_item_list
from shared.protocol.lengths import MOST_UPDATE_BYTES, least_update, longest_update
from shared.protocol.schemas import MOST_DROPOUTS, RunIn
from shared.protocol.secure.fixed_point import MOST_CLIENTS
from shared.protocol.secure.graph import COLLUDERS, DROPOUTS
from shared.protocol.secure.messages import FEWEST_CLIENTS
from shared.protocol.signing.invitation import FederationOut
from shared.strategies import STRATEGIES, build_strategy
from shared.strategies.agreement import declare_federation, find_task, require_mean
from shared.sums import SUMS, find_part, find_sum, list_sums, makes_models
from shared.sums.common_items import ITEMS
from shared.sums.content import CONTENT, CONTENT_SUM
from shared.sums.item_basis import USUAL_EXACT, USUAL_PLACES, USUAL_WORDS, choose_basis
from shared.timeouts import LONGEST_BODY_SECONDS, SIGNATURE_SECONDS, require_deadline_above_body
from shared.web.credentials import read_secret_setting, require_strong_secret
from shared.web.environment import EnvironmentSettings, read_settings
from shared.web.listening import ListenSettings

LEAST_TOKEN = 16  # characters; a shorter operator token could be guessed
WITHOUT_LIST = (
    "expected the silos' common list of items (catalogue) for noised sums (basis.epsilon) and for visits, got none;"
    " `lpsfed catalogue shop1.csv shop2.csv --out items.txt` makes one from the silos' data or lists; set it by"
    " --catalogue items.txt"
)


class AggregatorSettings(ListenSettings, EnvironmentSettings):
    """Settings of one aggregator, from LPSFED_AGGREGATOR_<NAME> or the constructor."""

    model_config = SettingsConfigDict(
        env_prefix="LPSFED_AGGREGATOR_",
        env_nested_delimiter="__",
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
    )

    state_directory: Path = Field(description="folder of database and model files; a restart resumes from it")
    database: SecretStr | None = Field(
        None,
        description="URL of a PostgreSQL database in place of the one in the state directory: "
        "[storage](operations.md#postgresql-and-s3)",
    )
    database_file: Path | None = Field(None, description="file with that URL")
    blobs: str | None = Field(
        None,
        description="`s3://bucket/prefix` for model files, or a folder that workers of one machine share: "
        "[storage](operations.md#postgresql-and-s3)",
    )
    workers: int = Field(
        1,
        ge=1,
        le=64,
        description="processes that serve at the port, with `DATABASE`: "
        "[several workers](operations.md#several-workers)",
    )
    shared: bool = Field(
        False,
        description="other workers of this federation use `DATABASE` and `BLOBS` as well: "
        "[several workers](operations.md#several-workers)",
    )
    operator_token: SecretStr | None = Field(None, description="the operator's token, 16 characters or more")
    operator_token_file: Path | None = Field(None, description="file with that token")
    keys_directory: Path | None = Field(
        None,
        description=(
            "folder of the clients' public keys, `<client>.pub`; a change takes effect at once; with `DATABASE` keys "
            "of invitations are rows in it, and files count beside them; "
            "unset: `keys` in the state directory"
        ),
    )
    signing_key_file: Path | None = Field(
        None,
        description=(
            "private key that signs every answer to a client; silos pin `aggregator.pub` beside it; "
            "unset: `aggregator.key` in the state directory, made at the first start"
        ),
    )
    signature_seconds: int = Field(
        SIGNATURE_SECONDS,
        ge=1,
        le=3600,
        description="largest difference of clocks, and delay of a signed request, in seconds",
    )
    strategy: str = Field("lpsfed", description="`lpsfed`, `fedavg`, `local` or one of the [baselines](strategies.md)")
    share: Literal["parameters", "sums", "both"] | None = Field(
        None,
        description=(
            "what silos share: `parameters`, trained in rounds; `sums`, masked statistics of items, "
            "titles and attributes, of which each silo makes its model; or `both`: [common "
            "basis](sums.md). It sets `SECURE`, and `basis`, `strategy.train` and `strategy.send` in "
            "`METHOD`; unset: what these say"
        ),
    )
    catalogue: Path | None = Field(
        None,
        description=(
            "list of items that all silos share, one id per line, of `lpsfed catalogue`; invitations "
            "carry it. Without it, silos that share sums find their common items by [a sum of hashed "
            "ids](sums.md#the-list-of-common-items), unless `METHOD` has the list's length and each "
            "silo the file"
        ),
    )
    catalogue_size_file: Path | None = Field(
        None,
        description=(
            "file with the number of items of the shared list, in place of `METHOD`'s `catalogue`: "
            "[common basis](sums.md)"
        ),
    )
    method: MethodSettings = Field(
        MethodSettings(),
        description=(
            "JSON; `width` and `layers` fix what is exchanged; `basis.kind` (`METHOD__BASIS__KIND`) "
            "declares a [common basis](sums.md)"
        ),
        validate_default=True,
    )
    start: Path | None = Field(
        None,
        description="safetensors file with initial values of declared tensors; the others are drawn",
    )
    secure: bool = Field(
        False,
        description=(
            "updates arrive masked, and only their sum can be read: [secure aggregation](secure-aggregation.md)"
        ),
        validate_default=True,
    )
    colluders: float = Field(
        COLLUDERS,
        ge=0,
        le=1,
        description=(
            "secure runs of 64 clients or more: share of the members that may collude without [the graph of "
            "neighbours](secure-aggregation.md#from-64-clients-on-a-graph-of-neighbours) telling a part; each silo "
            "holds it against its `policy.colluders`; 1: no graph, everybody is everybody's neighbour"
        ),
    )
    dropouts: float = Field(
        DROPOUTS,
        ge=0,
        le=MOST_DROPOUTS,
        description=(
            "secure runs of 64 clients or more: share of the members that may drop out of a round; more make its "
            "graph denser"
        ),
    )
    max_upload_bytes: int = Field(
        MOST_UPDATE_BYTES,
        ge=1,
        description=(
            "largest update in bytes; at most twice what the federation declares, plus a margin: "
            "[limits](reliability.md#limits-of-size)"
        ),
    )
    most_memory_bytes: int | None = Field(
        None,
        ge=1,
        description=(
            "largest memory of a run's aggregation, by an estimate; a run that needs more is refused:"
            " [what a run may cost](reliability.md#what-a-run-may-cost); unset: 3/4 of the machine's "
            "or container's memory"
        ),
    )
    quarantine_refusals: int = Field(
        5,
        ge=0,
        le=10_000,
        description=(
            "number of refused updates in a run after which a client is quarantined; 0: never: "
            "[robustness](strategies.md#bad-updates)"
        ),
    )
    retention_rounds: int = Field(2, ge=1, description="number of rounds that stay available")
    longest_body_seconds: float = Field(
        LONGEST_BODY_SECONDS,
        gt=0,
        le=3600,
        description="longest time for a request's whole body; a slower one is refused with 408",
    )
    port: int = Field(8800, ge=0, le=65535, description="port to listen on")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="`debug`, `info`, `warning` or `error`"
    )

    @field_validator("strategy")
    @classmethod
    def _require_known_strategy(cls, name: str) -> str:
        if name not in STRATEGIES:
            raise ValueError(f"expected one of {', '.join(STRATEGIES)}, got {name!r}")
        return name

    @field_validator("method")
    @classmethod
    def _take_catalogue_size(cls, method: MethodSettings, info: ValidationInfo) -> MethodSettings:
        expected = "catalogue_size_file: expected a file with a number"
        method = read_catalogue_size(method, info.data.get("catalogue_size_file"), int, expected)
        if (path := info.data.get("catalogue")) is None:
            return method
        try:
            listed = len(read_item_list(path))
        except SettingsError as error:
            raise ValueError(f"catalogue: {error}") from None
        if method.catalogue not in (0, listed):
            raise ValueError(f"catalogue: expected a list of {method.catalogue} items, got {listed}")
        return method.model_copy(update={"catalogue": listed})

    @field_validator("method")
    @classmethod
    def _apply_share(cls, method: MethodSettings, info: ValidationInfo) -> MethodSettings:
        share, strategy = info.data.get("share"), info.data.get("strategy")
        if share is None:
            return method
        if share == "parameters":
            if method.basis.kind != "off":
                raise ValueError(
                    f"share: expected sums or both with basis.kind = {method.basis.kind!r}, got parameters"
                )
            return method
        return _add_sums(method, alone=share == "sums", strategy=str(strategy))

    @field_validator("secure")
    @classmethod
    def _mask_sums(cls, secure: bool, info: ValidationInfo) -> bool:
        return secure or info.data.get("share") in ("sums", "both")

    @model_validator(mode="after")
    def _require_usable_token(self) -> Self:
        token = read_secret_setting("operator_token", self.operator_token, self.operator_token_file, LEAST_TOKEN)
        if token is None:
            raise ValueError("operator_token: expected either it or operator_token_file, got neither")
        if not self.demo:
            require_strong_secret("operator_token", token)
        return self

    @field_validator("blobs")
    @classmethod
    def _require_known_place(cls, given: str | None) -> str | None:
        if given is not None and not given.startswith("/"):
            read_place(given)
        return given

    @model_validator(mode="after")
    def _check_database(self) -> Self:
        """Checks the database's URL at the start, without repeating it: it may hold a password."""
        if self.shared and (self.database_url() is None or self.blobs is None):
            raise ValueError("shared: expected database and blobs, which all workers share, got one of them or none")
        if self.workers > 1 and self.database_url() is None:
            raise ValueError(f"workers: expected 1, or a database that workers share, got {self.workers} without one")
        self.database_url()
        return self

    @model_validator(mode="after")
    def _pack_items(self) -> Self:
        """Checks at the start that invitations have room for the list of items."""
        try:
            assert self.catalogue is None or self.items is not None
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _check_summable(self) -> Self:
        """Checks at the start that secure sums and models are possible."""
        try:
            if build_strategy(self.strategy, self.method).sums_alone and not self._has_basis:
                words = "expected true in a federation without a common basis, of which silos make their models"
                raise SettingsError(f"method: strategy.send: {words}, got false")
            if self.secure:
                self.declaration()
        except SettingsError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _require_tls(self) -> Self:
        """Requires TLS for masked updates, which still carry names and rho in the open."""
        open_port = not self.on_loopback and self.tls_certificate is None and not self.trusted_proxies
        if self.secure and open_port:
            raise ValueError("tls_certificate: expected one, or trusted_proxies that end TLS (secure), got neither")
        return self

    @property
    def _has_basis(self) -> bool:
        return any(makes_models(one, self.method) for one in list_sums(self.method).values())

    def token(self) -> str:
        """Returns the operator's token, from its setting or file."""
        return read_secret_setting("operator_token", self.operator_token, self.operator_token_file, LEAST_TOKEN) or ""

    def database_url(self) -> URL | None:
        """Returns the URL of the database server; None for a database in the state directory."""
        given = read_secret_setting("database", self.database, self.database_file, 1)
        try:
            return None if given is None else read_url(given)
        except ValueError as error:
            raise ValueError(f"database: {error}") from None

    @property
    def registry(self) -> Path:
        """Folder of the clients' public keys."""
        return self.keys_directory or self.state_directory / "keys"

    def declaration(self) -> Declaration:
        """Returns the declaration: all that a client of this federation may send."""
        return declare_federation(build_strategy(self.strategy, self.method), self.method, secure=self.secure)

    def explain_sum(self, method: MethodSettings) -> str:
        """Explains in one line why a run with these settings makes its sum."""
        kind, part = method.basis.kind, find_part(method.basis)
        if part == ITEMS and self.share is not None:
            return "which hashed ids silos have in common, because there is no list of items (--catalogue)"
        usual, why = choose_basis(method.catalogue)
        if reason := find_sum(method).reason:
            usual, why = {"kind": kind}, reason
        if self.share is not None and kind == usual["kind"]:
            return why
        name = f"METHOD__SUMS__{part.upper()}" if part in self.method.sums else "METHOD__BASIS"
        return f"{kind} sums, as {name} says"

    def describe_federation(self) -> FederationOut:
        """Describes the federation's settings for invitations."""
        task = find_task(build_strategy(self.strategy, self.method), self.method)
        listed = None if self.items is None else self.items.sha256
        return FederationOut(
            strategy=self.strategy, task=task, secure=self.secure, method=self.method, items_sha256=listed
        )

    @cached_property
    def items(self) -> ItemListOut | None:
        """List of items for invitations; None without a catalogue.

        Raises SettingsError for a list that has changed since the settings were read.
        """
        if self.catalogue is None:
            return None
        found = pack_item_list(read_item_list(self.catalogue))
        if found.items != self.method.catalogue:
            expected = f"expected the list of {self.method.catalogue} items that this aggregator has begun with"
            raise SettingsError(f"catalogue: {expected}, got {found.items}: start it again")
        return found

    @cached_property
    def longest_update(self) -> int:
        """Largest body of an update in bytes, at most the setting allows.

        Raises SettingsError if the setting is smaller than an update of this federation.
        """
        parts = self.declaration().parts
        if (least := max(map(least_update, parts))) > self.max_upload_bytes:
            expected = f"expected {least:,} bytes or more, as an update of this federation has"
            raise SettingsError(f"max_upload_bytes: {expected}, got {self.max_upload_bytes:,}")
        return min(self.max_upload_bytes, max(map(longest_update, parts)))

    def require_time(self, request: RunIn) -> None:
        """Raises ProtocolError for rounds shorter than the longest upload in time."""
        try:
            require_deadline_above_body(request.deadline_seconds, self.longest_body_seconds)
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def require_same_shape(self, method: MethodSettings) -> None:
        """Raises ProtocolError for settings that would exchange other tensors or scalars.

        Raises SettingsError for settings that do not fit the strategy. A run may leave out the federation's sums.
        """
        requested = declare_federation(build_strategy(self.strategy, method), method, secure=self.secure)
        expected = declare_federation(build_strategy(self.strategy, self.method), self.method, secure=self.secure)
        requested_sums = {part: one for part, one in expected.sums.items() if part in requested.sums}
        expected = expected.model_copy(update={"sums": requested_sums})
        if (difference := describe_difference(expected, requested)) is not None:
            ours, theirs = self.method.model_dump(), method.model_dump()
            changed = [name for name in type(method).model_fields if ours.get(name) != theirs.get(name)]
            raise ProtocolError(f"method ({', '.join(changed)}): {difference}")

    def require_summable(self, request: RunIn) -> None:
        """Raises ProtocolError for a run that a secure federation cannot carry out.

        It needs at least three clients, and no access to single updates.
        """
        if not self.secure:
            return
        if not FEWEST_CLIENTS <= request.clients <= MOST_CLIENTS:
            raise ProtocolError(f"clients: expected {FEWEST_CLIENTS} to {MOST_CLIENTS} (secure), got {request.clients}")
        if (least := self.longest_body_seconds / PARTS["masked"]) >= request.deadline_seconds:
            said = f"expected more than {least:g} (secure), so that a masked vector may take longest_body_seconds"
            raise ProtocolError(f"deadline_seconds: {said}, got {request.deadline_seconds:g}")
        try:
            require_mean(request.method)
        except SettingsError as error:
            raise ProtocolError(f"method: {error}") from None


def _add_sums(method: MethodSettings, *, alone: bool, strategy: str) -> MethodSettings:
    """Completes the settings with the sums that are shared; alone: nothing is trained.

    A task with a usual sum (`Sum.default_task`), such as visits and nodes, has that one. For users, the length of the
    list of items chooses the kind, unless the settings name one; without a list the silos sum the list of their
    common items first, and each kind that this list may choose is declared. Content sums of item features are added
    unless sums.content.kind is off. Raises ValueError for settings that cannot be summed.
    """
    task = find_task(build_strategy(strategy, method), method)
    usual = next((one for one in SUMS.values() if one.default_task == task), None)
    if alone and strategy != (fitting := "lpsfed" if task == "items" else "local"):
        raise ValueError(f"share: expected both, or the strategy {fitting}, with strategy = {strategy!r}, got sums")
    changes: dict[str, Any] = {"strategy": {**method.strategy, "train": False, "send": False}} if alone else {}
    for name, needed in changes.get("strategy", {}).items():
        if method.strategy.get(name, needed) not in (needed, str(needed).lower()):
            raise ValueError(f"share: expected both with strategy.{name} = {method.strategy[name]!r}, got sums")
    noised = method.basis.epsilon is not None
    if usual is not None and not usual.listed:
        changes["basis"] = method.basis.model_copy(update={"kind": usual.name})
    elif method.catalogue == 0:
        if noised or usual is not None:
            raise ValueError(f"share: {WITHOUT_LIST}")
        changes |= {"basis": BasisSettings(), "sums": dict(method.sums) | _sums_over_list(method.basis)}
    elif method.basis.kind == "off":
        chosen = {"kind": "exact"} if noised else choose_basis(method.catalogue)[0]
        chosen = chosen if usual is None else {"kind": usual.name}
        changes["basis"] = method.basis.model_copy(update=chosen)
    if usual is None and not noised:  # content sums have no noise, and visits and nodes no titles
        changes["sums"] = {CONTENT: BasisSettings(kind=CONTENT_SUM.name)} | changes.get("sums", dict(method.sums))
    try:
        return validate_settings(MethodSettings, method.model_copy(update=changes).model_dump())
    except SettingsError as error:
        raise ValueError(f"share: {error}") from None


def _sums_over_list(basis: BasisSettings) -> dict[str, BasisSettings]:
    """Returns the sum of the common item list and the declared sums over it.

    Those are of the kind that the settings name, or of each kind.
    """
    said = basis.model_dump(exclude_unset=True, exclude={"kind"})
    kinds: dict[str, dict[str, Any]] = {
        "exact": {"places": USUAL_EXACT},
        "iterated": {"places": USUAL_PLACES, "words": USUAL_WORDS},
    }
    if basis.kind not in ("off", *kinds):
        raise ValueError(f"basis.kind: expected one of {', '.join(kinds)} without a list of items, got {basis.kind!r}")
    chosen = [{**own, **said, "kind": kind} for kind, own in kinds.items() if basis.kind in ("off", kind)]
    listed = {name: value for name, value in said.items() if name != "places"} | {"kind": ITEMS}
    found = (BasisSettings.model_validate(values) for values in (listed, *chosen))
    return {find_part(one): one for one in found}


def aggregator_settings(**overrides: Any) -> AggregatorSettings:
    """Reads settings from the environment, with overrides.

    Raises SettingsError that names each bad field.
    """
    return read_settings(AggregatorSettings, overrides)
