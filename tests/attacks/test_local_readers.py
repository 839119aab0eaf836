"""Another user of the machine reads what a silo or an aggregator has written: shard, events, ledger, models, tokens."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shared.files import close_to_others
from simulation.cli import app
from simulation.experiments.experiment import Experiment
from simulation.experiments.processes import _environment_variables, _url_port, choose_addresses, connect_services
from tests.support.forked import start_service
from tests.support.given import Until
from tests.support.questions import finished

USUAL = 0o022
OPEN = f"import os; os.umask({USUAL})"


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """As most systems come: whatever is made may be read by everybody."""
    before = os.umask(USUAL)
    yield
    os.umask(before)


def readable(folder: Path) -> dict[str, str]:
    """What others may do anything with, and its mode; public keys are for all."""
    found = {path: stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*")) if path.suffix != ".pub"}
    return {str(path.relative_to(folder)): oct(mode) for path, mode in found.items() if mode & 0o077}


@pytest.mark.anyio
@pytest.mark.processes
async def test_what_a_trained_silo_and_its_aggregator_keep_is_for_their_user_alone(
    experiment: Callable[..., Experiment], until: Until
) -> None:
    described = experiment("run", strategy="fedavg")
    described.folder.mkdir()
    places, processes = choose_addresses(described), []
    old = [described.state_of(described.shards[0]), described.shards[0]]
    for folder in old:  # an earlier version has left them so
        (folder / "old").mkdir(parents=True)
        (folder / "old" / "file").write_text("u1")
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert all(readable(folder) for folder in old)

    def start(package: str, settings: object, **more: str) -> None:
        environment = _environment_variables(f"LPSFED_{package.partition('_')[0].upper()}", settings) | more
        processes.append(start_service(package, environment, described.folder / f"{len(processes)}.log", patch=OPEN))

    try:
        aggregator = described.make_aggregator_settings(port=_url_port(places.aggregator))
        start("aggregator_service", aggregator, LPSFED_AGGREGATOR_OPERATOR_TOKEN=described.token)
        for shard in described.shards:
            port = _url_port(places.clients[shard.name])
            start(
                "client_service",
                described.make_client_settings(shard, aggregator_url=places.aggregator, port=port),
            )
        async with connect_services(described, places) as federation:
            request = described.run_request().model_dump_json()
            headers = {"Content-Type": "application/json"}
            assert (await federation.operator.post("/v1/runs", content=request, headers=headers)).status_code == 201
            await until(finished(*federation.clients.values()))
            told = {"interactions": [{"event": "e", "user": "u", "item": "item-00"}]}
            answer = await federation.clients["client-1"].post(
                "/v1/interactions", json=told, headers={"Authorization": f"Bearer {described.application_key}"}
            )
            assert answer.status_code == 200, answer.text
            kept = [aggregator.state_directory, *map(described.state_of, described.shards), *described.shards]
            names = {path.name for folder in kept for path in folder.rglob("*")}
            assert {
                "ledger.jsonl",
                "feedback.sqlite",
                "aggregator.sqlite",
                "model.json",
                "interactions.parquet",
            } <= names
            assert any(name.endswith("-wal") for name in names)
            assert {str(folder): readable(folder) for folder in kept} == {str(folder): {} for folder in kept}
    finally:
        for process in processes:
            process.kill()
            process.join()


def test_what_a_command_writes_is_for_its_user_alone(tmp_path: Path) -> None:
    lines = "".join(f"u{user},i{(user * 3 + place) % 15}\n" for user in range(20) for place in range(10))
    (tmp_path / "data.csv").write_text("user,item\n" + lines)
    out = tmp_path / "made" / "shards"
    done = CliRunner().invoke(app, ["partition", str(tmp_path / "data.csv"), "--clients", "2", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert json.loads((out / "client-1" / "shard.json").read_text())["name"] == "client-1"
    assert readable(tmp_path / "made") == {}
    assert os.umask(USUAL) == USUAL  # only while the command runs


def test_a_file_of_another_user_that_all_can_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, foreign = tmp_path / "shard", tmp_path / "shard" / "interactions.parquet"
    folder.mkdir()
    foreign.write_bytes(b"u1")
    (folder / "link").symlink_to("/etc/passwd")
    change = Path.chmod

    def refuse(path: Path, mode: int) -> None:
        if path == foreign:
            raise PermissionError(1, "Operation not permitted")
        change(path, mode)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "chmod", refuse)
        assert close_to_others(folder) is None  # nobody else comes into the folder now
        folder.chmod(0o755)
        patched.setattr(Path, "chmod", lambda *_: refuse(foreign, 0))
        assert close_to_others(folder) == foreign
    assert close_to_others(folder) is None and readable(folder) == {"link": oct(0o777)}
    assert Path("/etc/passwd").stat().st_mode & stat.S_IROTH and close_to_others(tmp_path / "none") is None
