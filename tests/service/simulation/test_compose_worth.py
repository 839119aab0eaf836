"""The end of `docker compose up`: what joining was worth, from what each silo says and from the probes' evidence."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from audit.evidence.collect import read_aggregator_evidence, read_client_evidence
from audit.evidence.evidence import write_evidence
from client_service.federation.messages import EarlierRun, QualityOut
from client_service.federation.run_records import earlier_runs
from shared.method.settings import BasisSettings
from simulation.datasets.synthetic import generate_dataset
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Federation, Outcome, execute_run, ignore_progress
from simulation.experiments.in_process import open_federation
from simulation.partitioning.partition import partition_dataset, write_partition
from simulation.reports import compose_report
from simulation.reports.compose_report import main
from tests.support.small import SMALL

SILOS = ("client-1", "client-2", "client-3")


def test_the_end_has_every_way_and_what_crossed_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset = generate_dataset(0, users=60, items=50)
    parts = partition_dataset(dataset, clients=3, method="random", seed=0)
    shards = tuple(write_partition(dataset, parts, tmp_path / "shards"))
    method = SMALL.model_copy(update={"basis": BasisSettings(kind="exact")})
    described = Experiment(shards, tmp_path / "run", method, rounds=1, device="cpu", secure=True)
    strict, common = asyncio.run(_conduct(described, tmp_path))
    for name in SILOS:
        answer = common.qualities[name].model_dump_json()
        monkeypatch.setattr(httpx, "get", lambda *_, answer=answer, **__: _response(answer))
        assert main(["ask", name, "http://door:8801", str(tmp_path / "figures")]) == 0
    found = compose_report.compare_options(
        compose_report.read_qualities(tmp_path / "figures"), compose_report.gather_evidence([tmp_path / "evidence"])
    )
    by_name = {way.name: way for way in found}
    assert list(by_name) == ["popularity", "alone", "LPSFed, strict boundary", "with the common basis"]
    for way, outcome in ((found[2], strict), (found[3], common)):
        users = {name: quality.test_users for name, quality in outcome.qualities.items()}
        total = sum((one.test or {})["ndcg@20"] * users[name] for name, one in outcome.qualities.items())
        assert way.figures["ndcg@20"] == pytest.approx(total / sum(users.values()))
    assert main(["show", str(tmp_path / "figures"), str(tmp_path / "evidence")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "with the common basis: basis.degrees, basis.pairs, in 1 round; pooling (4 tensors), predictive" in shown
    assert "strict boundary: pooling (4 tensors)" in shown and "for this demonstration alone" in shown


async def _conduct(described: Experiment, folder: Path) -> list[Outcome]:
    """A run in the strict boundary and one with a common basis; what their probes would have written down."""
    (folder / "figures").mkdir()
    async with open_federation(described) as federation:
        requests = described.strict_request(), described.run_request()
        outcomes = [await execute_run(federation, request, ignore_progress) for request in requests]
        await _write_evidence(federation, folder / "evidence")
    return outcomes


async def _write_evidence(federation: Federation, folder: Path) -> None:
    parts = [await read_client_evidence(http, name) for name, http in federation.clients.items()]
    parts.append(await read_aggregator_evidence(federation.operator, "aggregator"))
    for part in parts:
        write_evidence(part, folder / f"{part.name}.json")


def _response(content: str) -> httpx.Response:
    return httpx.Response(200, text=content, request=httpx.Request("GET", "http://door:8801/v1/quality"))


def test_a_silo_is_asked_until_it_has_judged_its_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = iter([QualityOut(client="client-1", run="run-3", finished=done) for done in (False, False, True)])
    monkeypatch.setattr(compose_report, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(httpx, "get", lambda *_, **__: _response(next(seen).model_dump_json()))
    assert main(["ask", "client-1", "http://door:8801", str(tmp_path)]) == 0
    assert compose_report.read_qualities(tmp_path)["client-1"].finished


def test_a_silo_that_never_judges_it_and_folders_without_figures_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compose_report, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(httpx, "get", lambda *_, **__: _response(QualityOut(client="client-1").model_dump_json()))
    assert main(["ask", "client-1", "http://door:8801", str(tmp_path)]) == 1
    assert main(["show", str(tmp_path)]) == 1
    (tmp_path / "client-1.json").write_text("no figures")
    assert main(["show", str(tmp_path)]) == 1
    assert main(["show"]) == 1
    said = capsys.readouterr().err
    for words in ("it has not evaluated it yet", "of the silos, got none", "got another file", "got something else"):
        assert words in said


def test_a_silo_keeps_the_figures_of_its_earlier_runs_once_each_and_not_of_one_that_did_not_end() -> None:
    first = EarlierRun(run="run-1", test={"ndcg@20": 0.25}, test_users=40)
    ended = QualityOut(client="a", run="run-2", finished=True, test={"ndcg@20": 0.5}, test_users=40, earlier=(first,))
    second = EarlierRun(run="run-2", test={"ndcg@20": 0.5}, test_users=40)
    assert earlier_runs(ended, "run-3") == (first, second)
    assert earlier_runs(ended, "run-2") == (first,)
    assert earlier_runs(ended.model_copy(update={"finished": False}), "run-3") == (first,)
    assert earlier_runs(QualityOut(client="a"), "run-1") == ()
    many = ended.model_copy(update={"earlier": (first,) * 30})
    assert len(earlier_runs(many, "run-3")) == 20 and earlier_runs(many, "run-3")[-1] == second
