"""A run whose positives lie at the angle pi says so everywhere; one under the preset of the paper learns."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from client_service.federation.messages import QualityOut, RoundQuality
from client_service.federation.run_records import SATURATED, saturation_notices
from shared.method.settings import method_settings
from simulation.datasets.synthetic import generate_dataset
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Outcome, execute_run
from simulation.experiments.floors import Bounds, measure_all_floors
from simulation.experiments.in_process import open_federation, simulate_experiment
from simulation.partitioning.sources import Cut, cut_shards
from simulation.reports.plots import markdown_table
from simulation.reports.report import build_report
from simulation.reports.tables import quality_table

WORDS = "of the positives lay at the angle pi, where the loss has no gradient"
ROUNDS = 4


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    folder = tmp_path_factory.mktemp("generated")
    path = folder / "ratings.csv"
    generate_dataset(0, users=240, items=160).events.select("user", "item").write_csv(path)
    return cut_shards(str(path), Cut(2, "users", 0, 0), folder / "shards").paths


@pytest.fixture
def by_the_paper(generated: tuple[Path, ...], tmp_path: Path) -> Callable[..., Experiment]:
    """The paper's preset on generated data, small enough for a test."""

    def describe(**changes: Any) -> Experiment:
        method = method_settings("paper", cutoff=16, batch_size=256, **changes)
        return Experiment(generated, tmp_path / "paper", method, rounds=ROUNDS, device="cpu")

    return describe


def report_of(described: Experiment, outcome: Outcome) -> dict[str, Any]:
    cutoff = described.method.cutoff
    floors = measure_all_floors(described.shards, cutoff, cache_folder=described.cache_folder, observe=lambda _: None)
    return build_report(described, outcome, Bounds(floors), None)


def notes_of_clients(report: dict[str, Any]) -> list[str]:
    return [note for note in report["notes"] if note.startswith("client-")]


@pytest.mark.anyio
async def test_saturated_positives_are_told_in_log_status_page_report_and_table(
    by_the_paper: Callable[..., Experiment], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("WARNING", "client_service")
    described = by_the_paper(margin_reading="literal")
    async with open_federation(described) as federation:
        outcome = await execute_run(federation, described.run_request(), lambda _: None)
        status = (await federation.clients["client-1"].get("/v1/status")).json()
        page = (await federation.clients["client-1"].get("/")).text
    [warning] = [one for one in status["warnings"] if WORDS in one]
    assert "smaller margin_strength (gamma), or margin_reading = additive" in warning
    assert WORDS in page
    logged = [json.loads(record.getMessage()) for record in caplog.records]
    assert len([line for line in logged if WORDS in line.get("reason", "")]) == len(described.shards)  # once a client
    report = report_of(described, outcome)
    assert all(client["saturated"] >= SATURATED for client in report["clients"])
    assert [notice.partition(":")[0] for notice in notes_of_clients(report)] == ["client-1", "client-2"]
    console = Console(record=True, width=300)
    console.print(quality_table(report))
    assert WORDS in " ".join(console.export_text().split()) and WORDS in markdown_table(report)


def test_what_is_told_stays_the_same_from_the_first_such_round_on() -> None:
    shares = (0.0, 0.1, SATURATED, 0.9)
    rounds = tuple(RoundQuality(round=n, values={}, saturated=share) for n, share in enumerate(shares))
    told = [saturation_notices(QualityOut(client="a", run="run-1", rounds=rounds[:n])) for n in range(5)]
    assert told[:3] == [()] * 3 and told[3] == told[4] and "in round 2 of run-1" in told[3][0]


def test_the_preset_of_the_paper_ranks_as_popularity_does_after_few_rounds(
    by_the_paper: Callable[..., Experiment],
) -> None:
    described = by_the_paper()
    outcome = simulate_experiment(described, lambda _: None)
    report = report_of(described, outcome)
    assert notes_of_clients(report) == [] and all(client["saturated"] < SATURATED for client in report["clients"])
    assert report["client_mean"]["recall@20"] > report["floors"]["popularity"]["recall@20"] - 0.05
    assert all((quality.best_round or 0) > 0 for quality in outcome.qualities.values())
