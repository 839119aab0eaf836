"""Settings of an experiment: shards, strategy, seed, and those of each service."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from aggregator_service.settings import AggregatorSettings, aggregator_settings
from client_service.boundary.policy import Policy
from client_service.privacy.accounting import planned_epsilon
from client_service.privacy.settings import PrivacySettings
from client_service.runtime.device import DeviceChoice
from client_service.secure_rounds.masking import save_draw_secret
from client_service.settings import ClientSettings, client_settings
from shared.errors import SettingsError
from shared.method.settings import BasisSettings, MethodSettings, validate_settings
from shared.protocol.schemas import RunIn
from shared.protocol.secure.graph import COLLUDERS, DROPOUTS
from shared.protocol.signing.enrolment import KeyFiles, enrol_client, ensure_key_pair
from shared.protocol.signing.members import write_registry
from shared.strategies import build_strategy
from shared.strategies.agreement import choose_similarity_floor
from shared.sums import SUMS, list_sums, needs_list
from shared.timeouts import ANSWER_SECONDS
from simulation.partitioning.catalogue import write_catalogue


def parse_privacy(words: Mapping[str, str]) -> dict[str, Any]:
    """Parses privacy settings; a range is two numbers.

    {'mechanism': 'gaussian', 'rho_range': '0,0.02', ...}.
    """
    return {name: text.split(",") if name.endswith("_range") else text for name, text in words.items()}


def require_affordable(privacy: Mapping[str, Any], name: str, method: MethodSettings, rounds: int) -> None:
    """Raises SettingsError if the privacy budget ends before the run.

    Every client would stop, and the run would wait for them.
    """
    settings, strategy = validate_settings(PrivacySettings, dict(privacy)), build_strategy(name, method)
    refused = strategy.shares_items(method) and strategy.needs_single_updates  # by the clients, which say why
    if settings.budget is None or refused:
        return
    fresh = method.anchor.every_round or method.signal != "eigenvalues"  # then each round has another rho
    needed = planned_epsilon(settings, strategy.scalars, rounds, anchors=rounds if fresh else 1)
    if needed > settings.budget:
        raise SettingsError(
            f"privacy.budget: expected {needed:.4g} or more for {rounds} rounds of {name}, got {settings.budget:g}"
        )


DEADLINE_SECONDS = 6 * 3600.0
POLL_SECONDS = 0.05  # the aggregator is the experiment's own, and rounds may be as short as they like


@dataclass(frozen=True)
class Experiment:
    """One run of one strategy on given shards.

    `folder` takes the services' state. `cache`, if given, keeps what follows from a shard alone for other experiments
    on the same shards. `token` is of the aggregator's operator; the two keys are of every client's applications and
    operator. `privacy` holds every client's settings of differential privacy: SettingsError if its budget is too small
    for the run. `secure`: the aggregator can read only the sum of the updates. `colluders`, `dropouts`: shares that the
    graph of a secure run's neighbours bears. `fit_everything`: what a client serves
    is fitted again on all of its data. A strategy that shares items gets a catalogue of all shards' items, whatever
    size `method` names. `deadline_seconds`: of each phase of the run. `late`: shards whose silos join after the run;
    the list of items has only the others' items. `matches`: by a shard's name, its own items and the others' items
    that they are.
    """

    shards: tuple[Path, ...]
    folder: Path
    method: MethodSettings
    strategy: str = "lpsfed"
    task: str = "items"
    rounds: int = 15
    seed: int = 0
    device: DeviceChoice = "auto"
    threads: int = 1
    secure: bool = False
    colluders: float = COLLUDERS
    dropouts: float = DROPOUTS
    fit_everything: bool = False
    cache: Path | None = None
    deadline_seconds: float = DEADLINE_SECONDS
    privacy: Mapping[str, Any] = field(default_factory=dict)
    late: tuple[Path, ...] = ()
    matches: Mapping[str, Path] = field(default_factory=dict)
    token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    application_key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    operator_key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    def __post_init__(self) -> None:
        if self.privacy:
            require_affordable(self.privacy, self.strategy, self.method, self.rounds)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the clients: those of their shards' folders."""
        return tuple(path.name for path in self.shards)

    @cached_property
    def catalogue(self) -> Path | None:
        """File of the initial silos' items, where the method needs such a list.

        That is where the strategy shares items, or statistics of items are summed.
        """
        shared = self._shares_items or needs_list(self.method)
        return write_catalogue(self.initial_shards, self.folder, self.matches) if shared else None

    @property
    def initial_shards(self) -> tuple[Path, ...]:
        """Shards whose silos take part in the run from its start."""
        return tuple(path for path in self.shards if path not in self.late)

    @cached_property
    def agreed_method(self) -> MethodSettings:
        """Settings with the catalogue's size, and with the similarity_floor of this mode."""
        method = choose_similarity_floor(self.method, secure=self.secure)
        if self.catalogue is None:
            return method
        return method.model_copy(update={"catalogue": len(self.catalogue.read_text("utf-8").splitlines())})

    @property
    def _shares_items(self) -> bool:
        return build_strategy(self.strategy, self.method).shares_items(self.method)

    @property
    def _sum_policy(self) -> dict[str, Any]:
        """Policy and noise budget of a silo for the run's sums.

        It is as much as the run takes.
        """
        found: dict[str, Any] = {}
        for basis in list_sums(self.method).values():
            noised = basis.epsilon is not None
            found[SUMS[basis.kind].word] = "open" if not self.secure else "noised" if noised else "secure"
            if basis.epsilon is not None:
                found["basis_budget"] = found.get("basis_budget", 0.0) + basis.epsilon
                found["basis_delta"] = max(found.get("basis_delta", 0.0), basis.delta)
        return found

    def run_request(self) -> RunIn:
        """Builds the request by which the operator starts the run."""
        asked = {
            "rounds": self.rounds,
            "seed": self.seed,
            "clients": len(self.initial_shards),
            "method": self.agreed_method,
        }
        return validate_settings(RunIn, {**asked, "deadline_seconds": self.deadline_seconds})

    def strict_request(self) -> RunIn:
        """Builds the request without the common basis: only the strategy's own values leave a silo."""
        request = self.run_request()
        return request.model_copy(
            update={"method": request.method.model_copy(update={"basis": BasisSettings(), "sums": {}})}
        )

    def make_aggregator_settings(self, port: int = 0) -> AggregatorSettings:
        """Builds the aggregator's settings for this experiment."""
        return aggregator_settings(
            state_directory=self.folder / "aggregator",
            operator_token=self.token,
            keys_directory=self.registry,
            signing_key_file=self.aggregator_pair.private,
            strategy=self.strategy,
            method=self.agreed_method,
            secure=self.secure,
            colluders=self.colluders,
            dropouts=self.dropouts,
            port=port,
        )

    def make_client_settings(self, shard: Path, *, aggregator_url: str, port: int = 0) -> ClientSettings:
        """Builds the settings of one shard's client, and enrols its new key pair.

        In a secure federation all members are enrolled.
        """
        if self.secure:
            save_draw_secret(self.state_folder(shard), f"{self.seed}/{shard.name}")
        return client_settings(
            **self._silo_values(shard),
            signing_key_file=enrol_client(shard.name, self.state_folder(shard), self.registry).private,
            aggregator_url=aggregator_url,
            secure=self.secure,
            members=self.members if self.secure else None,
            privacy=dict(self.privacy),
            poll_seconds=POLL_SECONDS,
            call_seconds=ANSWER_SECONDS,  # many clients in one process share one event loop
            port=port,
            application_key=self.application_key,
            operator_key=self.operator_key,
        )

    def make_silo_settings(self, shard: Path) -> ClientSettings:
        """Builds the settings of a silo that trains without a service: no keys, no aggregator."""
        return client_settings(**self._silo_values(shard))

    def _silo_values(self, shard: Path) -> dict[str, Any]:
        """Returns the settings that decide how a silo learns and which values may leave it."""
        return {
            "name": shard.name,
            "shard": shard,
            "task": self.task,
            "state_directory": self.state_folder(shard),
            "strategy": self.strategy,
            "method": self.agreed_method,
            "catalogue": self.catalogue,
            "matches": self.matches.get(shard.name),
            "policy": Policy(
                strategies=(self.strategy,),
                item_tables=self._shares_items,
                scalars=tuple(build_strategy(self.strategy, self.agreed_method).scalars),
                least_similarity=choose_similarity_floor(self.method, secure=self.secure).similarity_floor,
                colluders=self.colluders,
                **self._sum_policy,
            ),
            "cache_directory": self.cache_folder(shard),
            "device": self.device,
            "threads": self.threads,
            "fit_everything": self.fit_everything,
        }

    @cached_property
    def aggregator_pair(self) -> KeyFiles:
        """Aggregator's own key pair."""
        return ensure_key_pair("aggregator", self.folder / "aggregator")

    @cached_property
    def members(self) -> Path:
        """File of all members' keys, which every client pins."""
        clients = {
            path.name: enrol_client(path.name, self.state_folder(path), self.registry).public for path in self.shards
        }
        return write_registry(self.folder / "members.toml", self.aggregator_pair.public, clients.values())

    @property
    def registry(self) -> Path:
        """Folder of the clients' public keys."""
        return self.folder / "keys"

    def state_folder(self, shard: Path) -> Path:
        """Returns the client's own folder."""
        return self.folder / shard.name

    def cache_folder(self, shard: Path) -> Path:
        """Returns the folder of the client's spectra."""
        return self.models_folder(shard) if self.cache is None else self.cache / shard.name

    @property
    def floors_folder(self) -> Path:
        """Folder of the floors, which other experiments on the same shards share."""
        return self.shards[0].parent / "kept" if self.cache is None else self.cache

    def models_folder(self, shard: Path) -> Path:
        """Returns the folder of the client's best model."""
        return self.state_folder(shard) / "model"
