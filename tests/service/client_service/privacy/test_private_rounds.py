"""Real federations of noised clients: what leaves, what is on record, and what happens when the budget is spent."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anyio
import numpy as np
import pytest

from client_service.boundary.aggregator_api import Aggregator
from client_service.boundary.ledger import Ledger
from client_service.federation.training_run import TrainingRun
from client_service.federation.upload import UpdateSender
from client_service.privacy.accounting import Charge, epsilon
from client_service.settings import ClientSettings
from shared.method.graph import Float64
from shared.method.parameters import Arrays, Parameters
from shared.protocol.wire import decode_body
from tests.support.given import Federate, Opened, Until
from tests.support.questions import finished, read, uploads

pytestmark = pytest.mark.anyio
CHOSEN: dict[str, Any] = {
    "mechanism": "gaussian",
    "clip_norm": 0.05,
    "noise_multiplier": 2.0,
    "scalar_noise_multiplier": 4.0,
    "delta": 1e-5,
    "budget": 30.0,
}
ROUND, RHO = [Charge("gaussian", 2.0), Charge("gaussian", 4.0)], Charge("gaussian", 4.0)


@pytest.fixture
def private(federation: Federate) -> Callable[..., Any]:
    """Two clients, of which the first one adds noise."""
    return lambda **privacy: federation(2, first={"privacy": CHOSEN | privacy})


def charges(settings: ClientSettings) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (settings.state_directory / "privacy/account.jsonl").read_text().splitlines()]


def spent(rounds: int) -> float:
    return epsilon([*ROUND * rounds, RHO], 1e-5)


async def test_a_run_is_noised_charged_and_shown(private: Any, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Parameters] = []
    real = TrainingRun.fit

    def fit(part: TrainingRun, *rest: Any) -> Any:
        found = real(part, *rest)
        if part.place.client == "client-1":
            trained.append(found[0])
        return found

    monkeypatch.setattr(TrainingRun, "fit", fit)
    async with private() as running:
        noised, plain = await running.enter()
        await running.start()
        await until(finished(noised, plain))
        status, quality = await read(noised, "status"), await read(noised, "quality")
        page, metrics = (await noised.get("/")).text, (await noised.get("/metrics")).text
        assert "privacy" not in await read(plain, "status")
        assert "privacy_epsilon" not in (await plain.get("/metrics")).text
    after = pytest.approx(spent(2))
    expected = {"mechanism": "gaussian", "epsilon": after, "delta": 1e-5, "budget": 30.0, "exhausted": False}
    assert status["privacy"] == expected and "problem" not in status
    assert f"{spent(2):.3g} of 30" in page and "epsilon spent of the budget" in page
    series = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line.startswith("lpsfed_client_privacy"))
    assert {name: float(value) for name, value in series.items()} == {
        "lpsfed_client_privacy_epsilon": after,
        "lpsfed_client_privacy_budget": 30.0,
    }
    one, two = uploads(running.clients[0])
    assert [entry["privacy"]["epsilon"] for entry in (one, two)] == [pytest.approx(spent(1)), after]
    assert set(one["privacy"]) == {"mechanism", "epsilon", "delta", "budget", "account"}
    assert [entry["privacy"]["account"]["entries"] for entry in (one, two)] == [1, 2]
    assert all(set(entry["scalars"]) == {"margin", "rho"} and len(entry["tensors"]) == 8 for entry in (one, two))
    assert one["scalars"]["rho"] == two["scalars"]["rho"] != trained[0].scalars["rho"]
    assert [entry["scalars"]["margin"] for entry in (one, two)] != [update.scalars["margin"] for update in trained]
    assert [entry["rho"] for entry in quality["rounds"][1:]] == [update.scalars["rho"] for update in trained]
    assert not any("privacy" in entry for entry in uploads(running.clients[1]))
    assert Ledger(running.clients[0].state_directory / "ledger.jsonl").verify() > 0


async def test_what_leaves_is_what_came_plus_a_clipped_change_and_noise(
    private: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With next to no noise the update differs from what came by the norm, in the direction of what was trained."""
    bodies: list[bytes] = []
    rounds: list[tuple[Parameters, Parameters]] = []
    upload, fit = Aggregator.upload, TrainingRun.fit

    async def uploading(self: Aggregator, run: str, number: int, body: bytes) -> Any:
        if self._client == "client-1":
            bodies.append(body)
        return await upload(self, run, number, body)

    def fitting(part: TrainingRun, strategy: Any, moment: Any, received: Parameters) -> Any:
        found = fit(part, strategy, moment, received)
        if part.place.client == "client-1":
            rounds.append((received, found[0]))
        return found

    monkeypatch.setattr(Aggregator, "upload", uploading)
    monkeypatch.setattr(TrainingRun, "fit", fitting)
    async with private(clip_norm=5e-5, noise_multiplier=1e-4, budget=1e12) as running:
        noised, plain = await running.enter()
        await running.start()
        await until(finished(noised, plain))
    for body, (received, trained) in zip(bodies, rounds, strict=True):
        left = decode_body(body)[1]
        change, wanted = (flat(arrays) - flat(received.arrays) for arrays in (left.arrays, trained.arrays))
        assert np.linalg.norm(wanted) > 1e-4 and np.linalg.norm(change) == pytest.approx(5e-5, rel=0.02)
        assert change @ wanted / np.linalg.norm(change) / np.linalg.norm(wanted) > 0.99


def flat(arrays: Arrays) -> Float64:
    return np.concatenate([np.asarray(arrays[name], dtype=np.float64).ravel() for name in sorted(arrays)])


async def test_once_the_budget_is_spent_nothing_leaves_and_all_else_goes_on(private: Any, until: Until) -> None:
    async with private(budget=spent(1) + 1e-6) as running:
        noised, plain = await running.enter()
        await running.start(quorum=1)

        async def second_round() -> bool:
            history = await running.history()
            found: list[dict[str, Any]] = history["rounds"]
            return len(found) == 2 and any(one["received"] for one in found[-1]["participants"])

        await until(second_round)

        async def waits() -> bool:
            return bool((await read(noised, "status"))["phase"] == "waiting for the round")

        await until(waits)
        running.clock.pass_the_deadline()
        await until(finished(noised, plain))
        history = await running.history()
        assert (history["phase"], [entry["missing"] for entry in history["rounds"]]) == ("finished", [[], ["client-1"]])
        status, quality = await read(noised, "status"), await read(noised, "quality")
        assert "problem" not in status and status["phase"] == "finished"
        [said] = [words for words in status["warnings"] if "privacy budget" in words]
        assert "no update leaves any more, while parameters are still received" in said
        assert status["privacy"]["exhausted"] and status["privacy"]["epsilon"] == pytest.approx(spent(1))
        assert "spent: no further update leaves" in (await noised.get("/")).text
        assert [entry["round"] for entry in quality["rounds"]] == [0, 1, 2] and quality["test"] is not None
        answer = (await noised.get("/v1/users/user-00/recommendations?k=3")).json()
        assert len(answer["items"]) == 3 and "fallback" not in answer
    assert [entry["round"] for entry in uploads(running.clients[0])] == ["1"]
    assert [entry["round"] for entry in uploads(running.clients[1])] == ["1", "2"]
    assert len(charges(running.clients[0])) == 1


async def test_spending_goes_on_over_restarts_and_runs(private: Any, opened: Opened, until: Until) -> None:
    async with private() as running, opened(running.clients[1], running.line()) as plain:
        for number, seed in ((1, 1), (2, 1), (3, 2)):
            async with opened(running.clients[0], running.line()) as noised:
                await running.start(rounds=1, seed=seed)
                await until(finished(noised, plain, run=f"run-{number}"))
                now = (await read(noised, "status"))["privacy"]["epsilon"]
            rhos = [RHO] * seed  # the same seed gives the same anchor, another one another
            assert now == pytest.approx(epsilon([*ROUND * number, *rhos], 1e-5))
    assert [entry["run"] for entry in charges(running.clients[0])] == ["run-1", "run-2", "run-3"]


async def test_a_silo_s_gate_lets_no_update_out_that_is_not_its_release(
    private: Any, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake above the gate, which would send the update itself, sends nothing."""

    async def forgotten(self: Any, part: TrainingRun, update: Parameters) -> Parameters:
        del self, part
        return update

    monkeypatch.setattr(UpdateSender, "_release", forgotten)
    async with private() as running:
        noised, _ = await running.enter()
        await running.start()

        async def refused() -> bool:
            words = (await read(noised, "status")).get("problem", "")
            return "expected the release of this round's update" in words

        await until(refused)
        participants = (await running.history())["rounds"][0]["participants"]
    assert not any(one["received"] for one in participants if one["client"] == "client-1")
    assert uploads(running.clients[0]) == []


async def test_a_kill_between_the_charge_and_the_upload_is_charged_once_and_sends_the_same(
    private: Any, opened: Opened, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Parameters] = []
    async with private() as running, opened(running.clients[1], running.line()) as plain:
        with monkeypatch.context() as patched:
            real = UpdateSender._send

            async def never(self: UpdateSender, part: Any, leaving: Parameters, state: Any) -> Any:
                if self._guard is None:
                    return await real(self, part, leaving, state)
                drawn.append(leaving)
                await anyio.sleep_forever()

            patched.setattr(UpdateSender, "_send", never)
            async with opened(running.clients[0], running.line()):
                await running.start(rounds=1)

                async def reached() -> bool:
                    return bool(drawn)

                await until(reached)
        assert len(charges(running.clients[0])) == 1 and uploads(running.clients[0]) == []
        async with opened(running.clients[0], running.line()) as noised:
            await until(finished(noised, plain))
    assert len(charges(running.clients[0])) == 1
    [left] = uploads(running.clients[0])
    assert left["scalars"] == dict(drawn[0].scalars)
