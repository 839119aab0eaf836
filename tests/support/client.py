"""Small shards: any three matrices, and four communities of ten users and ten items who like what is theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.federation.training_run import TrainingRun
from client_service.settings import ClientSettings
from tests.support.federation import run_client
from tests.support.given import Held, Hold, Opened, Silos, Until
from tests.support.questions import LONGEST_SECONDS
from tests.support.small import small_client
from tests.support.telling import Serving, serves


@pytest.fixture
def shard_of() -> Callable[..., Shard]:
    """A shard of written-out matrices train, valid and test, (M, N); the last two are empty where not given."""

    def shard(train: ArrayLike, valid: ArrayLike | None = None, test: ArrayLike | None = None) -> Shard:
        whole = np.asarray(train, dtype=np.float64)
        parts = [whole, *(np.zeros_like(whole) if part is None else part for part in (valid, test))]
        matrices = [sparse.csr_array(np.asarray(part, dtype=np.float64)) for part in parts]
        users, items = (tuple(f"{kind}{row}" for row in range(n)) for kind, n in zip("ui", whole.shape, strict=True))
        return build_shard_from_matrices("shop", users, items, matrices)

    return shard


@pytest.fixture
def planted(shard_of: Callable[..., Shard]) -> Shard:
    """40 users, 40 items: of its community's ten items each user has six in training, one held out for each split."""
    generator, parts = np.random.default_rng(0), np.zeros((3, 40, 40))
    for user in range(40):
        own = user // 10 * 10 + generator.permutation(10)
        for split, items in enumerate((own[:6], own[6:7], own[7:8])):
            parts[split, user, items] = 1.0
    return shard_of(*parts)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Hold:
    def hold(client: str, number: int) -> Held:
        stop, fit = Held(client, number), TrainingRun.fit

        def fit_when_let(part: TrainingRun, strategy: Any, moment: Any, received: Any) -> Any:
            if (part.place.client, moment.round) == (client, number):
                stop.reached.set()
                assert stop.released.wait(LONGEST_SECONDS)
            return fit(part, strategy, moment, received)

        monkeypatch.setattr(TrainingRun, "fit", fit_when_let)
        return stop

    return hold


@pytest.fixture
def settings(silos: Silos, tmp_path: Path) -> ClientSettings:
    """A silo without an aggregator."""
    return small_client(silos(1)[0], tmp_path)


@pytest.fixture
async def silo(settings: ClientSettings, opened: Opened) -> AsyncIterator[httpx.AsyncClient]:
    """The service of these settings, which runs."""
    async with opened(settings) as http:
        yield http


@pytest.fixture(scope="module")
async def shared_silo(shared_settings: Callable[..., ClientSettings]) -> AsyncIterator[httpx.AsyncClient]:
    """A service that the tests of a file share: they only look."""
    settings = shared_settings()
    async with run_client(settings, settings.state_directory / "keys") as http:
        yield http


@pytest.fixture
def serving(settings: ClientSettings, opened: Opened, until: Until) -> Serving:
    """The service of these settings, with changes, once it serves its model."""

    @asynccontextmanager
    async def begin(**changes: Any) -> AsyncIterator[httpx.AsyncClient]:
        async with opened(settings.model_copy(update=changes)) as http:
            await until(lambda: serves(http))
            yield http

    return begin
