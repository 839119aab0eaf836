"""One of five clients sends what it should not, through the real app: what each defence makes of it, and none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shared.method.parameters import Arrays, Float32, Parameters
from shared.protocol.wire import decode_body, encode_body

if TYPE_CHECKING:
    from conftest import FakeClient, Federation, Running

pytestmark = pytest.mark.anyio

Tensors = Callable[[bytes], dict[str, Float32]]
NAMES = ("ada", "bob", "cyd", "dan", "eve")  # eve is the bad one
SCALARS = {"rho": 0.1, "margin": 0.2}  # of all the same rho: everybody gets the centre itself
STEP = 0.1  # of each coordinate, which the honest ones agree upon but for a tenth of it

DEFENCES: dict[str, dict[str, Any]] = {
    "none": {},
    "clipped": {"clip_factor": 1.0},
    "median": {"aggregate": "median"},
    "trimmed mean": {"aggregate": "trimmed_mean", "tolerated": 1},
    "krum": {"aggregate": "krum", "tolerated": 1},
    "multi-krum": {"aggregate": "krum", "tolerated": 1, "krum_kept": 2},
    "clipped median": {"aggregate": "median", "clip_factor": 2.0},
    "quarantine": {"quarantine_factor": 4.0},
}
ATTACKS = {"a thousand times": 1000.0, "the other way": -10.0}


async def begun(client: FakeClient, tensors: Tensors) -> dict[str, Float32]:
    """What all start from."""
    return tensors((await client.get("/v1/runs/run-1/model")).content)


def honest(client: str, start: Arrays, times: float = 1.0) -> dict[str, Float32]:
    """One step the way that all go, and a little this client's own; or so many times that."""
    generator = np.random.default_rng(NAMES.index(client))
    steps = {name: STEP + STEP / 10 * generator.standard_normal(value.shape) for name, value in start.items()}
    return {name: (value + times * steps[name]).astype(np.float32) for name, value in start.items()}


def off(found: Arrays, start: Arrays) -> float:
    """How far the centre is from the honest four's mean, in lengths of their mean step."""
    four = [honest(name, start) for name in NAMES[:4]]
    mean = {name: np.mean([one[name] for one in four], axis=0) for name in start}
    wrong = sum(float(np.sum((found[name] - mean[name]) ** 2)) for name in start)
    return float(np.sqrt(wrong / sum(float(np.sum((mean[name] - start[name]) ** 2)) for name in start)))


async def attacked(federation: Federation, method: dict[str, Any], times: float, tensors: Tensors) -> float:
    """A round in which the fifth sends so many times an honest change -> how far off its result is."""
    clients = await federation.begun(*NAMES, method=method)
    start = await begun(clients[0], tensors)
    for client in clients:
        arrays = honest(client.name, start, times if client.name == "eve" else 1.0)
        assert (await client.put(1, encode_body(Parameters(arrays, SCALARS)))).status_code == 201
    answer = await clients[0].personalised(1)
    assert answer.status_code == 200, answer.text
    return off(tensors(answer.content), start)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("defence", DEFENCES)
async def test_with_a_defence_the_state_stays_with_the_honest_mean_and_without_it_does_not(
    running: Running, tensors: Tensors, defence: str, attack: str
) -> None:
    async with running() as federation:
        wrong = await attacked(federation, DEFENCES[defence], ATTACKS[attack], tensors)
    assert (wrong < 0.5) is (defence != "none"), wrong


@pytest.mark.parametrize("defence", DEFENCES)
async def test_without_an_attack_every_defence_gives_nearly_the_mean(
    running: Running, tensors: Tensors, defence: str
) -> None:
    async with running() as federation:
        assert await attacked(federation, DEFENCES[defence], 1.0, tensors) < 0.2


@pytest.mark.parametrize(("method", "expected"), [({}, (4 * 0.2 + 3.1) / 5), ({"aggregate": "median"}, 0.2)])
async def test_a_median_of_margins_does_not_follow_one_that_is_as_large_as_it_may_be(
    running: Running, method: dict[str, Any], expected: float
) -> None:
    async with running() as federation:
        clients = await federation.begun(*NAMES, method=method)
        for client in clients:
            margin = 3.1 if client.name == "eve" else 0.2
            assert (await client.put(1, client.update(1.0, rho=0.1, margin=margin))).status_code == 201
        found = decode_body((await clients[0].personalised(1)).content)[1].scalars
    assert found == {"margin": pytest.approx(expected)}


BROKEN = {
    "nan": ({"value": float("nan")}, "expected finite values, got NaN or infinity in"),
    "a huge rho": ({"value": 1.0, "rho": 123.4375}, "rho: expected a number from 0 to 23.2083, got 123.438"),
    "a negative rho": ({"value": 1.0, "rho": -123.4375}, "rho: expected a number from 0 to 23.2083, got -123.438"),
    "a huge margin": ({"value": 1.0, "margin": 123.5}, "margin: expected a number from -0.0001 to 3.14169, got 123.5"),
}


@pytest.mark.parametrize("what", BROKEN)
async def test_what_no_client_can_have_is_refused_in_words_that_are_in_no_log(
    running: Running, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    caplog.set_level(logging.DEBUG)
    sent, words = BROKEN[what]
    async with running() as federation:
        *_, eve = await federation.begun(*NAMES)
        answer = await eve.put(1, eve.update(sent["value"], **{n: v for n, v in sent.items() if n != "value"}))
        assert answer.status_code == 422 and answer.json()["code"] == "protocol"
        assert words in answer.json()["detail"]
        assert words not in caplog.text and "123." not in caplog.text
        assert not list((federation.settings.state_directory / "blobs").iterdir())
        assert (await eve.put(1, eve.update(1.0, rho=0.1))).status_code == 201  # the right one is still taken


async def test_the_range_is_that_of_the_run_s_own_settings(running: Running) -> None:
    async with running() as federation:
        *_, eve = await federation.begun(*NAMES, method={"margin_strength": 0.1})
        answer = await eve.put(1, eve.update(1.0, margin=0.5))
        assert answer.status_code == 422 and "margin: expected a number from -0.0001 to 0.314259" in answer.text


@pytest.mark.parametrize("limit", [0, 2])
async def test_a_client_that_can_only_send_nonsense_does_not_hold_the_round_up_once_it_is_quarantined(
    running: Running, tensors: Tensors, limit: int
) -> None:
    async with running(quarantine_refusals=limit) as federation:
        *honest_ones, eve = await federation.begun(*NAMES)
        for client in honest_ones:
            await client.put(1, client.update(2.0, **SCALARS))
        answers = [(await eve.put(1, eve.update(float("nan")))).status_code for _ in range(3)]
        got = await honest_ones[0].personalised(1, wait=30.0 if limit else 0.0)
    assert answers == ([422, 422, 403] if limit else [422] * 3)
    assert got.status_code == (200 if limit else 204)
    if limit:
        assert all((value == 2.0).all() for value in tensors(got.content).values())


@pytest.mark.parametrize(
    ("method", "request_", "words"),
    [
        ({"aggregate": "krum", "tolerated": 2}, {}, "expected 7 or more with aggregate = krum, tolerated = 2, got 5"),
        ({"aggregate": "trimmed_mean", "tolerated": 2}, {"quorum": 4}, "quorum: expected 5 or more"),
        ({"aggregate": "krum"}, {}, "tolerated"),
    ],
)
async def test_a_run_that_could_close_a_round_with_too_few_is_refused_at_its_start(
    running: Running, method: dict[str, Any], request_: dict[str, Any], words: str
) -> None:
    async with running() as federation:
        settings = federation.settings.method.model_dump(mode="json") | method
        answer = await federation.start_run(clients=5, method=settings, **request_)
    assert answer.status_code == 422 and words in answer.json()["detail"], answer.text


async def test_a_strategy_that_is_no_mean_refuses_a_centre_at_the_start(running: Running) -> None:
    async with running(strategy="fedpub") as federation:
        settings = federation.settings.method.model_dump(mode="json") | {"aggregate": "median"}
        answer = await federation.start_run(clients=5, method=settings)
    assert (answer.status_code, answer.json()["code"]) == (422, "settings")
    assert "aggregate: expected mean with strategy fedpub" in answer.json()["detail"]
