"""Workers with bodies in a bucket: secure rounds through any of them, also when the one that leads ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from aggregator_service.app import create_app
from shared.protocol.secure.fixed_point import STEP
from shared.protocol.signing.enrolment import ensure_key_pair
from shared.protocol.wire import decode_body
from tests.service.aggregator_service.secure.conftest import NAMES, PHASES, Masking, SecureFederation, content
from tests.support.aggregator import METHOD, Federation
from tests.support.federation import run_app
from tests.support.small import small_aggregator

if TYPE_CHECKING:
    from conftest import Place, Store

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
Open = Callable[..., AbstractAsyncContextManager[Federation]]


@pytest.fixture
def open_worker(tmp_path: Path, place: Place, store: Store) -> Open:
    key = ensure_key_pair("aggregator", tmp_path).private
    common = {"blobs": store.url, "keys_directory": tmp_path / "registry", "signing_key_file": key, "shared": True}

    @asynccontextmanager
    async def opened(name: str, *, secure: bool) -> AsyncIterator[Federation]:
        settings = small_aggregator(tmp_path / name, method=METHOD, database=place.url, secure=secure, **common)
        app = create_app(settings)
        async with run_app(app, "http://aggregator") as http:
            yield Federation(app, http, settings, None)

    return opened


async def test_updates_in_a_bucket_through_two_workers_are_one_sum(open_worker: Open, store: Store) -> None:
    async with open_worker("one", secure=False) as one, open_worker("two", secure=False) as two:
        await one.begun("north", "south", rounds=2)
        for number in (1, 2):
            assert await one.client("north").sends(number, 1.0 + number) == 201
            assert await two.client("south").sends(number, 3.0 + number) == 201
            assert await one.client("south").level(number) == await two.client("north").level(number) == 2.0 + number
        assert len(store.names()) > 0


@pytest.mark.parametrize("ended_before", PHASES)
async def test_a_secure_round_through_two_workers_outlives_the_end_of_the_first(
    open_worker: Open, ended_before: str
) -> None:
    async with open_worker("two", secure=True) as two:
        async with open_worker("one", secure=True) as one:
            fakes = await one.joined(*NAMES[:4])
            assert (await two.start_run(rounds=1, clients=4)).status_code == 201
            clients = {fake.name: Masking(fake, content(fake, seed), one) for seed, fake in enumerate(fakes)}
            made = SecureFederation(one, clients)
            for turn, phase in enumerate(PHASES[: PHASES.index(ended_before)]):
                for number, masking in enumerate(clients.values()):
                    masking.fake = (one, two)[(turn + number) % 2].client(masking.name)
                await made.phase(phase)
        made.again(two)
        for phase in PHASES[PHASES.index(ended_before) :]:
            await made.phase(phase)
        answer = await clients["ada"].fake.personalised(1)
        assert answer.status_code == 200, answer.text
        found, expected = decode_body(answer.content)[1].arrays, made.mean(*clients)
        assert set(found) == set(expected)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=2.0**-22, atol=STEP)
        assert (await two.history())["phase"] == "finished"
