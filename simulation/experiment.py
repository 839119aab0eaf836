"""What an experiment is: its shards, strategy, settings and seed; and the service settings that follow from it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from aggregator_service.settings import AggregatorSettings, aggregator_settings
from client_service.device import DeviceWish
from client_service.settings import ClientSettings, client_settings
from shared.schemas import RunIn
from shared.settings import MethodSettings

DEADLINE_SECONDS = 6 * 3600.0


@dataclass(frozen=True)
class Experiment:
    """One run of one strategy on given shards. `folder` takes the services' state."""

    shards: tuple[Path, ...]
    folder: Path
    method: MethodSettings
    strategy: str = "lpsfed"
    rounds: int = 15
    seed: int = 0
    device: DeviceWish = "auto"
    threads: int = 1
    token: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """A client is named for its shard's folder."""
        return tuple(path.name for path in self.shards)

    def request(self) -> RunIn:
        return RunIn(
            rounds=self.rounds,
            seed=self.seed,
            clients=len(self.shards),
            deadline_seconds=DEADLINE_SECONDS,
            method=self.method,
        )

    def aggregator(self, port: int = 0) -> AggregatorSettings:
        return aggregator_settings(
            state_directory=self.folder / "aggregator",
            operator_token=self.token,
            strategy=self.strategy,
            method=self.method,
            port=port,
        )

    def client(self, shard: Path, *, aggregator_url: str, port: int = 0) -> ClientSettings:
        return client_settings(
            name=shard.name,
            shard=shard,
            state_directory=self.state_of(shard),
            aggregator_url=aggregator_url,
            strategy=self.strategy,
            method=self.method,
            device=self.device,
            threads=self.threads,
            port=port,
        )

    def state_of(self, shard: Path) -> Path:
        """The client's own folder."""
        return self.folder / shard.name

    def models_of(self, shard: Path) -> Path:
        """Where the client keeps its spectrum and its best model."""
        return self.state_of(shard) / "model"
