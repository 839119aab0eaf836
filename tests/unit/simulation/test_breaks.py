"""`lpsfed break` without an engine: what it says where there is none, and what it would do to which parts."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pytest
import yaml
from typer.testing import CliRunner

from audit.checks.findings import make_finding
from audit.report import PrivacyReport
from shared.errors import SettingsError, UnavailableError
from simulation.breaks import engine as subject
from simulation.breaks import plant
from simulation.breaks.engine import Engine
from simulation.breaks.federation import ComposeFederation, find_federation
from simulation.breaks.kinds import known_breaks
from simulation.breaks.planted_header import HEADER, SOURCE
from simulation.cli import app, breaks
from simulation.deployment.compose import MAIN, MOST_SILOS, compose_files
from simulation.partitioning.sources import number_silos

ROOT = Path(__file__).parents[3]
BREAKS = known_breaks(4)
Made = Callable[..., Path]

DOCKER = """#!{python}
import json, os, sys
here, words = {here!r}, sys.argv[1:]
with open(os.path.join(here, "calls"), "a") as calls:
    calls.write(json.dumps([os.path.basename(sys.argv[0]), *words]) + "\\n")
answers = json.load(open(os.path.join(here, "answers")))
for start, (code, said) in answers:
    if words[: len(start)] == start and all(word in " ".join(words) for word in start):
        print(said)
        sys.exit(code)
sys.exit(0)
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """A stand-in for the command, which answers what begins like this by that and notes all that it is asked."""

    def make(*answers: tuple[list[str], tuple[int, str]]) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        (tmp_path / "answers").write_text(json.dumps(answers))
        (tmp_path / "calls").touch()
        path = folder / "docker"
        path.write_text(DOCKER.format(python=sys.executable, here=str(tmp_path)))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", str(folder))
        return tmp_path / "calls"

    return make


def inspected(folder: Path) -> str:
    labels = {
        "com.docker.compose.project.working_dir": str(folder),
        "com.docker.compose.project.config_files": "docker-compose.yml",
    }
    given = ["LPSFED_AGGREGATOR_SECURE=true", "PATH=/bin", f"LPSFED_PROBE_EXPECT={','.join(parts(3))}"]
    return json.dumps([{"Config": {"Labels": labels, "Env": given}}])


def parts(silos: int) -> tuple[str, ...]:
    numbers = number_silos(silos)
    return "aggregator", "gateway", *(f"{kind}-{number}" for kind in ("client", "gateway") for number in numbers)


def federation(silos: int = 4) -> ComposeFederation:
    return ComposeFederation(Engine(quiet), "fed", ("docker", "compose"), {}, parts(silos))


def running(folder: Path, services: tuple[str, ...] = parts(3)) -> tuple[tuple[list[str], tuple[int, str]], ...]:
    """Answers of an engine with one such federation."""
    return (
        (["ps", "--filter", "label=com.docker.compose.service=gateway"], (0, "fed")),
        (["ps", "--filter", "label=com.docker.compose.project=fed"], (0, "\n".join(services))),
        (["ps", "--all"], (0, "fed_one_1")),
        (["inspect"], (0, inspected(folder))),
    )


def quiet(line: str) -> None:
    del line


def test_a_machine_without_docker_and_an_engine_that_does_not_answer_are_told_apart(
    docker: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as bare, pytest.raises(SettingsError, match="expected docker on this machine"):
        bare.setenv("PATH", str(tmp_path))
        subject.require_engine()
    docker((["version"], (1, "Cannot connect to the Docker daemon")))
    with pytest.raises(UnavailableError, match="got 1: Cannot connect to the Docker daemon"):
        subject.require_engine()


def test_without_compose_it_says_so(docker: Made) -> None:
    docker((["compose"], (1, "")))
    with pytest.raises(SettingsError, match="got neither"):
        subject.compose_command()


def test_no_federation_and_one_that_does_not_run_whole_are_told(docker: Made, tmp_path: Path) -> None:
    docker()
    with pytest.raises(SettingsError, match="expected a running federation that `docker compose up` has started"):
        find_federation(Engine(quiet))
    (tmp_path / "answers").write_text(json.dumps(running(tmp_path, tuple({*parts(3)} - {"client-3"}))))
    with pytest.raises(UnavailableError, match="fed: expected all parts to run, got none of client-3"):
        find_federation(Engine(quiet))


def test_of_several_federations_one_must_be_named(docker: Made) -> None:
    docker((["ps"], (0, "one\ntwo")))
    with pytest.raises(SettingsError, match="--project: expected one of the federations that run, one, two"):
        find_federation(Engine(quiet))


def test_it_is_known_by_its_containers_how_a_federation_was_brought_up(docker: Made, tmp_path: Path) -> None:
    docker(*running(tmp_path))
    with pytest.raises(SettingsError, match="expected the Compose files that started it"):
        find_federation(Engine(quiet))
    (tmp_path / "docker-compose.yml").touch()
    found = find_federation(Engine(quiet))
    assert found.project == "fed" and found.choices == {"LPSFED_SECURE": "true"}
    assert found.parts == parts(3) and found.silos == 3
    assert found.compose[:4] == ("docker", "compose", "--project-name", "fed")
    assert found.compose[-1] == str(tmp_path / "docker-compose.yml")


def test_every_command_that_changes_something_is_told_before_it_runs(docker: Made) -> None:
    calls, told = docker((["fail"], (3, "why"))), []
    engine = Engine(told.append)
    engine.run_command("docker", "pause", "a b", environment={"X": "1", "CODE": "a\nb"})
    assert told == ["$ X=1 docker pause 'a b'"] and calls.read_text().splitlines() == ['["docker", "pause", "a b"]']
    assert engine.run_command("docker", "fail", exit_codes=(0, 3)) == (3, "why\n")
    with pytest.raises(UnavailableError, match=r"docker fail \.\.\.: expected success, got 3: why"):
        engine.run_command("docker", "fail")


@pytest.mark.parametrize("silos", range(1, MOST_SILOS + 1))
def test_kinds_change_parts_and_volumes_that_there_are(silos: int) -> None:
    composed: dict[str, Any] = yaml.safe_load(compose_files(silos)[Path(MAIN)])
    services, volumes = {*composed["services"]}, {*composed["volumes"]}
    for kind, one in known_breaks(silos).items():
        assert {*one.services} <= services, kind
        named = {name for errand in (one.before, one.after) if errand for name in errand.volumes}
        named |= {volume.partition(":")[0] for said in one.services.values() for volume in said.get("volumes", ())}
        assert {name for name in named if not name.startswith("/")} <= volumes, kind
        assert one.faults and (one.services or one.before or one.after)
    there = federation(silos)
    assert {*there.parts, *there.probes, "report"} <= services and {*there.volumes} <= volumes
    told = composed["services"]["report"]["environment"]["LPSFED_PROBE_EXPECT"]
    assert {*told.split(",")} == {*there.parts} and {*there.writers} < {*there.parts}


def test_a_break_in_the_evidence_and_one_in_the_code_are_in_different_silos_where_there_are_two() -> None:
    assert known_breaks(1)["header"].services.keys() == {"client-1"}
    for silos in range(2, MOST_SILOS + 1):
        (changed,) = known_breaks(silos)["header"].services
        assert known_breaks(silos)["evidence"].faults != (f"{changed}: no evidence",)
    assert [*known_breaks(2)["root"].services] == ["gateway-2"] and [*BREAKS["root"].services] == ["gateway-4"]


def test_several_at_once_leave_each_its_change(docker: Made) -> None:
    calls = docker()
    with plant._override_file(plant._service_changes([BREAKS["key"], BREAKS["root"]])) as path:
        said = json.loads(path.read_text())["services"]
        federation().bring_up(sorted(said), path)
    assert set(said) == {"aggregator", "gateway-4"} and said["gateway-4"]["user"] == "0:0"
    (line,) = calls.read_text().splitlines()
    assert json.loads(line)[-4:] == ["--no-build", "--no-deps", "aggregator", "gateway-4"] and not path.exists()


def test_what_is_planted_is_not_planted_again_and_nothing_is_not_mended(docker: Made, tmp_path: Path) -> None:
    calls = docker((["volume", "ls"], (0, "fed_break")))
    with pytest.raises(SettingsError, match="expected no planted fault, got one; --mend removes it"):
        plant.plant_breaks(federation(), ["key"])
    (tmp_path / "answers").write_text("[]")
    with pytest.raises(SettingsError, match="expected a planted fault, got none"):
        plant.mend_breaks(federation())
    assert all("volume" in line for line in calls.read_text().splitlines())


def test_a_break_is_named_only_where_all_its_words_stand_in_one_fault() -> None:
    faults = ["aggregator, mounts, places: also /spare", "client-2, contents, private key: 1 at /spare"]
    found = make_finding("probes", "nothing", "nothing", faults)
    report = PrivacyReport.model_construct(findings=(found,))
    matched = dict(plant.match_faults(BREAKS["key"], report))
    assert matched == {
        "aggregator, mounts, places: also /spare": faults[0],
        "aggregator, contents, private key: 1 at /spare": None,
    }


def test_what_is_named_and_what_is_not_is_shown_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    faults = ["aggregator, contents, Parquet: 1 at /state", "something else"]
    found = make_finding("probes", "nothing", "nothing", faults)
    report = PrivacyReport.model_construct(findings=(found,), held=False, verdict="Red.")
    assert breaks._print_faults(report, {"shard": BREAKS["shard"]})
    assert capsys.readouterr().out.split("\n")[:3] == [
        "Red.",
        f"- shard: {faults[0]}",
        "- and 1 line more in the same report",
    ]
    assert not breaks._print_faults(report, {kind: BREAKS[kind] for kind in ("shard", "evidence")})
    assert "- evidence: not named: client-3: no evidence" in capsys.readouterr().out


def test_kinds_are_listed_and_unknown_ones_refused() -> None:
    run = CliRunner()
    listed = run.invoke(app, ["break", "--list"])
    assert listed.exit_code == 0 and all(kind in listed.stdout for kind in BREAKS)
    for arguments in (["nothing-of-the-kind"], [], ["key", "--mend"]):
        refused = run.invoke(app, ["break", *arguments])
        assert isinstance(refused.exception, SettingsError) and "kinds of fault" in str(refused.exception)


TRIED = """
import asyncio, httpx
async def noted(transport, request):
    return httpx.Response(200, headers=request.headers)
httpx.AsyncHTTPTransport.handle_async_request = noted
{planted}
async def ask():
    async with httpx.AsyncClient() as http:
        return (await http.get("http://nobody")).headers["{header}"]
print(asyncio.run(ask()))
"""


def test_the_planted_code_puts_interactions_into_a_header_of_each_request(tmp_path: Path) -> None:
    pairs = {"user": [f"user-{n:04}" for n in range(500)], "item": [f"item-{n}" for n in range(500)]}
    polars.DataFrame(pairs).write_parquet(tmp_path / "shard")
    code = TRIED.format(planted=SOURCE.replace("/shard/interactions.parquet", str(tmp_path / "shard")), header=HEADER)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("user-0000:item-0,user-0001:item-1") and len(done.stdout.strip()) == 6000
