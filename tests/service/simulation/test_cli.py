"""The command line as a user meets it: files written, JSON for programs, one clear line when something is wrong."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shared.errors import FederationError, SettingsError
from simulation.cli import app, main
from simulation.cli import demo as demo_command
from simulation.datasets.synthetic import generate_dataset
from simulation.demo import DemoResult
from simulation.engines import choose_engine
from simulation.engines.study import RunExperiment
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Observe, Outcome, Progress
from simulation.experiments.processes import Addresses
from simulation.experiments.tasks import Example
from simulation.reports import terminal
from simulation.reports.joining_value import ALONE, COMMON, STRICT, ServingOption
from simulation.reports.tables import describe_joining_value

SMALL = ("--set", "width=8", "--set", "cutoff=16", "--set", "batch_size=256")
FIGURES = (
    "strategy seed rounds edges_kept client_mean user_mean alone together centralised silos clients floors notes "
    "bytes_up bytes_down seconds digest"
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set as a CSV of pairs."""
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    generate_dataset(0, users=240, items=160).events.select("user", "item").write_csv(path)
    return path


@pytest.fixture(scope="module")
def shards(ratings: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    found = run("partition", str(ratings), "--clients", "2", "--method", "users", "--out", str(folder), "--json")
    summary = json.loads(found.stdout)
    assert found.exit_code == 0 and [client["client"] for client in summary["clients"]] == ["client-1", "client-2"]
    assert summary["edges_kept"] == 1.0
    return folder


@pytest.fixture(scope="module")
def finished(shards: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    assert run("simulate", str(shards), "--rounds", "2", *SMALL, "--out", str(folder)).exit_code == 0
    return folder


def test_sums_of_visits_are_none_of_a_demo_of_items() -> None:
    with pytest.raises(SettingsError, match="--common-basis: expected one of off, exact, iterated, got 'transitions'"):
        run("demo", "--common-basis", "transitions")


def test_a_scenario_shares_sums_and_says_what_each_silo_gains(ratings: Path, tmp_path: Path) -> None:
    words = ("simulate", str(ratings), "--scenario", "big-and-tiny", "--silos", "3", "--seed", "2")
    done = run(*words, "--secure", "--out", str(tmp_path / "run"), "--json", "--set", "cutoff=16")
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert report["settings"]["basis"]["kind"] == "exact" and report["settings"]["strategy"] == {"train": "false"}
    silos = report["silos"]
    assert [silo["client"] for silo in silos] == [client["client"] for client in report["clients"]]
    for silo in silos:
        assert silo["ratio"] == pytest.approx(silo["together"]["ndcg@20"] / silo["alone"]["ndcg@20"])
    total = sum(silo["users"] for silo in silos)
    for way in ("alone", "together"):
        mean = sum(silo["users"] * silo[way]["ndcg@20"] for silo in silos) / total
        assert report[way]["ndcg@20"] == pytest.approx(mean)
    assert max(silo["users"] for silo in silos) > total / 2


def test_an_interrupted_simulation_says_how_to_go_on_and_ends_as_if_it_had_not_been(
    finished: Path, shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a run"
    words = ["simulate", str(shards), "--rounds", "2", *SMALL, "--out", str(folder)]

    def choose_interrupted_engine(*chosen: Any) -> RunExperiment:
        conduct = choose_engine(*chosen)

        def conduct_one_round(experiment: Experiment, observe: Observe) -> Outcome:
            def interrupt_after_a_round(seen: Progress) -> None:
                observe(seen)
                if min((terminal.rounds_done(status) for status in seen.statuses.values()), default=0) >= 1:
                    raise KeyboardInterrupt

            return conduct(experiment, interrupt_after_a_round)

        return conduct_one_round

    with monkeypatch.context() as patched:
        patched.setattr("simulation.engines.choose_engine", choose_interrupted_engine)
        patched.setattr(sys, "argv", ["lpsfed", *words])
        done = run(*words)
    assert done.exit_code == 130
    assert f"of 2 rounds are kept in {folder}; to resume:\n  {shlex.join(['lpsfed', *words])}" in done.stderr
    other = CliRunner().invoke(app, [*words, "--seed", "7"])
    assert "was begun with, got another seed" in str(other.exception)
    assert run(*words).exit_code == 0
    again, whole = (json.loads((one / "report.json").read_text()) for one in (folder, finished))
    assert (again["digest"], again["client_mean"]) == (whole["digest"], whole["client_mean"])
    assert run(*words).exit_code == 0  # what is finished is told again


def test_a_simulation_writes_its_config_its_metrics_and_its_report(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    assert set(report) >= set(FIGURES.split())
    assert set(report["floors"]) == {"popularity", "lowpass", "ridge", "ease"}
    assert report["untrained"]["ndcg@20"] > 0
    assert set(report["client_mean"]) == {"recall@20", "ndcg@20"}
    assert set(report["clients"][0]) >= {"users", "items", "edges", "best_round", "rho", "rhobar", "saturated"}
    assert set(report["seconds"]) >= {"spectrum", "training", "evaluation", "overhead"}
    assert all(len(sent) == 2 for sent in report["bytes_up"].values())
    assert json.loads((finished / "config.json").read_text())["method"]["width"] == 8
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [(row["client"], row["round"]) for row in rows] == [(f"client-{c}", r) for c in (1, 2) for r in (0, 1, 2)]


def test_means_are_those_of_the_clients(finished: Path) -> None:
    report = json.loads((finished / "report.json").read_text())
    one, two = (client["recall@20"] for client in report["clients"])
    users = [client["test_users"] for client in report["clients"]]
    assert report["client_mean"]["recall@20"] == pytest.approx((one + two) / 2)
    assert report["user_mean"]["recall@20"] == pytest.approx((one * users[0] + two * users[1]) / sum(users))


def test_nothing_is_sent_by_the_local_strategy_but_empty_updates(shards: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "local"), "--json")
    report: dict[str, Any] = json.loads(
        run("simulate", str(shards), "--rounds", "1", "--strategy", "local", "--no-floors", *SMALL, *out).stdout
    )
    assert report["floors"] == {} and report["alone"] is None
    assert report["strategy"] == "local" and max(report["bytes_up"]["client-1"]) < 100


def test_a_report_draws_curves_and_a_table(finished: Path) -> None:
    assert run("report", str(finished)).exit_code == 0
    assert (finished / "curves.png").read_bytes().startswith(b"\x89PNG")
    table = (finished / "report.md").read_text()
    assert "| popularity |" in table and "| **lpsfed** |" in table and "best floor" in table


def test_the_doctor_names_what_is_wrong(shards: Path, tmp_path: Path, free_tcp_port: int) -> None:
    port = ("--port", str(free_tcp_port))
    assert run("doctor", "--shard", str(shards / "client-1"), *port).exit_code == 0
    found = run("doctor", "--shard", str(tmp_path), *port, "--json")
    bad = [check for check in json.loads(found.stdout) if not check["good"]]
    assert found.exit_code == 1 and [check["name"] for check in bad] == ["shard"]
    assert "interactions.parquet" in bad[0]["found"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("simulate", "no-such-file"), 1, "no-such-file"),
        (("simulate", "synthetic", "--set", "widht=3"), 2, "widht"),
        (("simulate", "synthetic", "--set", "gamma"), 2, "expected key=value, got 'gamma'"),
        (("simulate", "synthetic", "--clients", "5000"), 1, "5000"),
        (("report", "."), 1, "report.json"),
        (("aggregator",), 2, "state_directory"),
        (("client", "--name", "Not a name", "--shard", "s", "--state-directory", "s"), 2, "name"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lpsfed", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == code and "Traceback" not in said
    assert words in " ".join(said.split()) and "error:" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("partition", "synthetic", "--out", "file"), "--out: expected a folder, or a place for one, got file"),
        (("partition", "synthetic", "--out", "file/in"), "--out: expected a folder, or a place for one, got file/in"),
        (("tune", "synthetic", "--out", "file"), "--out: expected a folder"),
        (("simulate", "synthetic", "--out", "file/in"), "--out: expected a folder"),
        (("demo", "--folder", "file"), "--folder: expected a folder"),
        (("report", "file"), "file/report.json: expected a finished simulation"),
        (("doctor", "--port", "70000"), "--port: expected 1..65535, got 70000"),
        (("probe", "client", "--name", "c", "--published", "70000"), "--published: expected 1..65535, got 70000"),
        (("status", "--operator-token-file", "file", "--aggregator-url", "http://h:x"), "got 'http://h:x'"),
        (("status", "--operator-token-file", "empty"), "empty: expected the operator's token in the file, got nothing"),
        (
            ("run", "--operator-token-file", "file", "--clients", "20000"),
            "clients: expected a number of at most 10,000",
        ),
        (("recommend", "u", "--k", "0"), "--k: expected a number of 1 or more, got 0"),
        (("invite", "a", "--operator-token-file", "file", "--days", "x"), "--days: expected a number, got 'x'"),
        (("join", "file", "--accept", "everything"), "--accept: expected one of parameters, sums, got 'everything'"),
        (("keys", "remove", "east", "--keys", "file"), "expected a registered name, got 'east'"),
        (("simulate", "there", "--clients", "5"), "--clients: expected 1, as many as there has shards, or none, got 5"),
        (("tune", "there", "--out", "t", "--clients", "5"), "--clients: expected 1, as many as there has shards"),
        (("simulate", "there", "--method", "users"), "--method: expected none with a folder of shards"),
        (("simulate", "there", "--scenario", "chain"), "--scenario: expected none with a folder of shards"),
        (
            ("simulate", "synthetic", "--scenario", "chain", "--method", "users"),
            "--scenario: expected none with --method users, got chain",
        ),
        (
            ("simulate", "clicks", "--task", "sessions", "--scenario", "chain"),
            "--scenario: expected none with sessions",
        ),
        (
            ("simulate", "there", "--rank", "8"),
            "--rank: expected it with --common-basis iterated alone, got it with off",
        ),
        (("simulate", "there", "--common-basis", "exact", "--rank", "8"), "alone, got it with exact"),
        (("run", "--operator-token-file", "file", "--basis-rounds", "4"), "--basis-rounds: expected it with"),
        (
            ("simulate", "there", "--set", "start=common"),
            "expected a kind other than off with start = common, got the d",
        ),
        (
            ("catalogue", "table.csv", "--out", "x.txt"),
            "got the columns user, price; --columns item=NAME names another",
        ),
        (("catalogue", "file", "--out", "no/x.txt"), "no/x.txt: expected a writable path, got none"),
    ],
)
def test_a_place_an_address_or_a_port_of_no_use_is_told_before_the_work_begins(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("some words")
    Path("empty").touch()
    Path("table.csv").write_text("user,price\na,3\n")
    Path("there/client-1").mkdir(parents=True)
    Path("there/client-1/interactions.parquet").touch()
    with pytest.raises(FederationError) as raised:
        run(*arguments)
    assert words in str(raised.value)


@pytest.mark.parametrize(("task", "own"), [("items", ""), ("sessions", " --task sessions")])
def test_a_demo_whose_services_have_ended_says_what_to_do_next(
    task: str, own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["demo", "--task", task, "--clients", "2", "--folder", str(tmp_path)]
    pages = Addresses("http://127.0.0.1:1", {})
    example, nowhere = Example("/v1", "For u"), tmp_path / "key"
    done = DemoResult({}, (), {}, pages.aggregator, example, nowhere, nowhere, nowhere, pages, {}, (), None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "argv", ["lpsfed", *words])
    monkeypatch.setattr(demo_command, "_run_demo", lambda *_, **__: done)
    monkeypatch.setattr(demo_command, "_print_demo", lambda _: None)
    said = run(*words).stdout
    again, simulate = said[said.index("The services have ended. Next:") :].splitlines()[1:]
    assert again.strip().startswith(f"{shlex.join(['lpsfed', *words, '--keep'])}    keeps the services")
    assert simulate.startswith(f"  lpsfed simulate FILE{own}    trains silos")


def test_what_joining_was_worth_is_one_sentence() -> None:
    ways = [
        ServingOption(name=name, figures={"ndcg@20": figure}, crossed="", bytes=size)
        for name, figure, size in (("popularity", 0.08, 0), (ALONE, 0.24, 0), (STRICT, 0.23, 9), (COMMON, 0.30, 99))
    ]
    said = "NDCG@20 over all users, .3000 with the common basis, .2400 alone: +25.0 %."
    assert describe_joining_value(ways) == f"What joining was worth: {said}"
    assert describe_joining_value(ways[:2]) == "What joining was worth: unknown, because there are no test data."
