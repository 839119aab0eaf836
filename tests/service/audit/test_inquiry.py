"""All the probes of a part, as its sidecar makes them, and the evidence that they leave; from there to the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from typer.testing import CliRunner

from audit import cli, console
from audit.evidence import collect
from audit.evidence.case import open_case
from audit.evidence.evidence import PartEvidence, ProbeSending, gather_evidence, merge_evidence
from audit.probes import inquiry as subject
from audit.probes.inquiry import Inquiry, Services, run_inquiry
from audit.probes.meeting import SystemPart
from audit.probes.network import OutsideHost
from audit.probes.part import PartLocation
from audit.report import make_report
from shared.errors import DataError, FederationError, ProtocolError, SettingsError, TooLargeError, UnavailableError
from shared.protocol.signing.enrolment import KeyFiles

if TYPE_CHECKING:
    from conftest import Federation, Parts, Running, Until

pytestmark = pytest.mark.anyio
PARTS = {
    "aggregator": SystemPart(name="aggregator", role="aggregator", port=8800, addresses=("192.0.2.1",)),
    "client-1": SystemPart(name="client-1", role="client", port=8801, addresses=("192.0.2.2",)),
    "client-2": SystemPart(name="client-2", role="client", port=8801, addresses=("192.0.2.3",)),
    "gateway-2": SystemPart(name="gateway-2", role="gateway", port=8800, addresses=("192.0.2.4",), behind="client-2"),
}
Reached = Callable[["Federation"], None]


@pytest.fixture(autouse=True)
def out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that leads nowhere."""

    async def no_route(*args: Any) -> bytes:
        del args
        raise OSError(113, "No route to host")

    def unknown(name: str) -> tuple[str, ...]:
        raise OSError(f"{name} is not known")

    monkeypatch.setattr("audit.probes.reach.open_and_close", no_route)
    monkeypatch.setattr("audit.probes.reach.exchange_bytes", no_route)
    monkeypatch.setattr("audit.probes.network.exchange_bytes", no_route)
    monkeypatch.setattr("audit.probes.reach.look_up_addresses", unknown)


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> Reached:
    """Let an inquiry ask the services of a federation in this process."""

    def use(running: Federation) -> None:
        def opened(url: str, bearer: str | None = None, **_: object) -> httpx.AsyncClient:
            headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
            silo = running.silos.get(url.removeprefix("http://"))
            transport = httpx.ASGITransport(running.app) if silo is None else silo._transport
            return httpx.AsyncClient(transport=transport, base_url=url, headers=headers)

        monkeypatch.setattr(subject, "open_http", opened)

    return use


def wanted(running: Federation, name: str, folder: Path) -> Inquiry:
    """An inquiry in the place of one part, with the files that its container would have."""
    own, settings = PARTS[name], next((one for one in running.clients if one.name == name), None)
    key = None if settings is None else KeyFiles.of(name, settings.state_directory).private
    token = folder / "token"
    token.write_text(running.operator.headers["Authorization"].removeprefix("Bearer "))
    services = Services("http://aggregator", f"http://{name}", key, token)
    (folder / "elsewhere" / "empty").mkdir(parents=True, exist_ok=True)
    here = (
        PartLocation(folder / "elsewhere", ()) if settings is None else PartLocation(settings.shard, (settings.shard,))
    )
    others = {key: part for key, part in PARTS.items() if key != name}
    return Inquiry(own, others, OutsideHost(), (8801,), here, services, recorded=True)


async def test_all_parts_probed_twice_give_evidence_for_a_report_that_holds(
    federation: Running, until: Until, tmp_path: Path, reached: Reached
) -> None:
    folder = tmp_path / "evidence"
    async with federation() as running:
        await running.start(rounds=1)
        await until(running.finished)
        reached(running)
        for _ in range(2):  # the second time the aggregator has the first one's refusals on record
            for name in ("client-1", "client-2", "aggregator", "gateway-2"):
                found = await run_inquiry(wanted(running, name, tmp_path))
                assert [one for one in found.probes if not one.held and one.kind != "control: its own part"] == []
                merge_evidence(found, folder / f"{name}.json")
    made = make_report(open_case(gather_evidence([folder])))
    assert [one.name for one in made.findings if not one.held] == ["probes"]  # no gateway answers in this network
    assert any("72 sent by the probes and refused" in one.found for one in made.findings)
    kinds = {one.kind: {other.role for other in made.probes if other.kind == one.kind} for one in made.probes}
    assert kinds["files"] == {"client", "aggregator"} and kinds["outside by DNS"] == {"client", "aggregator", "gateway"}
    assert kinds["past the gate"] == kinds["at the gate"] == kinds["control: the aggregator"] == {"client"}


async def test_without_a_key_nothing_is_uploaded_and_without_a_token_there_is_no_record(
    federation: Running, tmp_path: Path, reached: Reached
) -> None:
    async with federation() as running:
        reached(running)
        client, aggregator = (wanted(running, name, tmp_path) for name in ("client-1", "aggregator"))
        bare = Services("http://aggregator", "http://client-1", None, None)
        found = await run_inquiry(replace(client, services=bare, recorded=False))
        assert {"files", "control: the aggregator"} <= {one.kind for one in found.probes}
        assert found.declaration is None and not {"past the gate", "at the gate"} & {one.kind for one in found.probes}
        assert (await run_inquiry(replace(client, services=bare))).declaration == client_declaration(running)
        assert (await run_inquiry(replace(aggregator, services=bare, recorded=False))).arrivals == ()
        with pytest.raises(SettingsError, match="--operator-token-file"):
            await run_inquiry(replace(aggregator, services=bare))
        with pytest.raises(SettingsError, match="operator token: expected a readable text file"):
            await run_inquiry(replace(aggregator, services=replace(bare, token=tmp_path)))


def client_declaration(running: Federation) -> Any:
    return running.clients[0].declaration()


async def test_whoever_is_no_such_service_is_named(federation: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async with federation() as running:
        with pytest.raises(ProtocolError, match="expected client 'client-1', got 'client-2'"):
            await collect.read_client_evidence(running.silos["client-2"], "client-1")
        with pytest.raises(FederationError, match="GET /v1/declaration, got 401"):
            await collect.read_aggregator_evidence(running.stranger(), "aggregator")
        monkeypatch.setattr(collect, "MOST_ENTRIES", 0)
        with pytest.raises(TooLargeError, match="expected at most 0 entries"):
            await collect.read_ledger(running.silos["client-1"])
        monkeypatch.setattr(collect, "MOST_BYTES", 10)
        with pytest.raises(TooLargeError, match="expected at most 10 bytes"):
            await collect.read_client_evidence(running.silos["client-1"], "client-1")


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (httpx.Response(503), FederationError, "GET /v1/status, got 503"),
        (httpx.Response(200, content=b"<html>"), ProtocolError, "answer to GET /v1/status, got another message"),
        (httpx.ConnectError("nobody"), UnavailableError, "expected a running service, got ConnectError"),
    ],
)
async def test_an_answer_that_is_none_is_an_error(answer: Any, error: type[Exception], words: str) -> None:
    def say(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, content=answer.content, request=request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(say), base_url="http://silo") as http:
        with pytest.raises(error, match=f"http://silo: .*{words}"):
            await collect.read_client_evidence(http, "client-1")


OLD = ("--records-only", "--within", "1e9")  # the evidence of these tests is of different years


def run(*arguments: str) -> tuple[int, str]:
    console.OUT.width = 100
    done = CliRunner().invoke(cli.app, list(arguments), catch_exceptions=False)
    return done.exit_code, done.stdout


def test_a_report_of_a_folder_is_printed_within_100_columns(parts: Parts, tmp_path: Path) -> None:
    for name, part in parts.items():
        merge_evidence(part, tmp_path / f"{name}.json")
    code, said = run("privacy-report", "--records-only", str(tmp_path))
    assert code == 0 and "Nothing undeclared crossed" in said and "…" not in said
    assert max(map(len, said.splitlines())) <= 100
    assert said.count("All fields of the update") == 1 and "client-1, run-1 round 2" in said
    assert (
        run("privacy-report", "--records-only", str(tmp_path), "--every-field")[1].count("All fields of the update")
        == 4
    )
    code, said = run("privacy-report", "--records-only", str(tmp_path), "--json")
    assert code == 0 and len(json.loads(said)["crossings"]["client-1"]) == 8
    (tmp_path / "client-2.json").unlink()
    code, said = run("privacy-report", "--records-only", str(tmp_path))
    assert code == 1 and "client-2: no evidence" in said and "Nothing undeclared" not in said


def test_what_a_ledger_tells_cannot_command_a_terminal(parts: Parts, tmp_path: Path) -> None:
    entries = [dict(entry) for entry in parts["client-1"].entries]
    update = next(entry for entry in reversed(entries) if entry.get("call") == "update")
    update["tensors"] = [{**update["tensors"][0], "name": "[red]\x1b[2J"}]
    merge_evidence(parts["client-1"].model_copy(update={"entries": tuple(entries)}), tmp_path / "client-1.json")
    merge_evidence(parts["aggregator"], tmp_path / "aggregator.json")
    code, said = run("privacy-report", "--records-only", str(tmp_path))
    assert code == 1 and "\x1b" not in said and "[red]?[2J" in said


def test_evidence_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "client-1.json").write_text('{"name": "client-1"}')
    for path, words in (
        (tmp_path, r"client-1\.json: expected evidence, got other content in 2 places"),
        (tmp_path / "client-2.json", r"client-2\.json: expected evidence \(No such file"),
    ):
        with pytest.raises(DataError, match=words):
            gather_evidence([path])
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="expected a folder with evidence"):
        gather_evidence([empty])


def test_what_earlier_probes_sent_stays_told(tmp_path: Path) -> None:
    sent = ProbeSending(call="join", bytes=2, sha256="a" * 64, status=403)
    part = PartEvidence(name="client-1", role="client", taken_at="2026-01-01", sent=(sent,))
    for count in (1, 2, 3):
        merge_evidence(part, tmp_path / "client-1.json")
        assert gather_evidence([tmp_path])[0].sent == (sent,) * count
    assert [path.name for path in tmp_path.iterdir()] == ["client-1.json"]
    with pytest.raises(SettingsError, match=r"nobody\.json: expected a writable path"):
        merge_evidence(part, tmp_path / "client-1.json" / "nobody.json")


def test_a_probe_without_a_record_ends_with_its_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parts: Parts
) -> None:
    monkeypatch.setattr("audit.probes.network.own_interfaces", lambda: ())
    code, said = run("probe", "gateway", "--name", "gateway-7", "--json")
    assert code == 0 and {one["held"] for one in json.loads(said)["probes"]} == {True}
    peer = ("--peer", "client-7=client@192.0.2.7:8801")  # out of reach for its own gateway: the control fails
    code, said = run("probe", "gateway", "--name", "gateway-7", *peer)
    assert code == 1 and "control: its own part: client-7" in said and "NOT HELD" in said and "…" not in said
    record = tmp_path / "evidence" / "gateway-7.json"
    assert run("probe", "gateway", "--name", "gateway-7", *peer, "--record", str(record))[0] == 0
    for name, part in parts.items():
        merge_evidence(part, tmp_path / "evidence" / f"{name}.json")
    code, said = run("privacy-report", *OLD, str(tmp_path / "evidence"), "--json")
    faults = [fault for one in json.loads(said)["findings"] for fault in one["faults"]]
    assert code == 1 and faults == ["gateway-7, control: its own part, client-7: no answer"]


def test_parts_that_meet_are_probed_and_those_that_do_not_come_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.probes.network.own_interfaces", lambda: ())
    (tmp_path / "client-7.json").write_text(PARTS["client-2"].model_copy(update={"name": "client-7"}).model_dump_json())
    monkeypatch.setenv("LPSFED_PROBE_MEET", str(tmp_path))
    monkeypatch.setenv("LPSFED_PROBE_EXPECT", "gateway-6,client-7")
    monkeypatch.setenv("LPSFED_PROBE_OUTSIDE", "192.0.2.9:4430")
    code, said = run("probe", "gateway", "--name", "gateway-6")
    assert code == 0 and "to another client: 192.0.2.3:8801" in said and "outside by TCP: 192.0.2.9:4430" in said
    with pytest.raises(UnavailableError, match="without client-8"):
        run("probe", "gateway", "--name", "gateway-6", "--expect", "client-8", "--meet-seconds", "0.05")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("privacy-report",), "expected evidence, or --operator-token-file and every --client, or both"),
        (("privacy-report", "--operator-token-file", "y"), "--client"),
        (("probe", "gateway", "--name", "G"), "--name"),
        (("probe", "gateway", "--name", "g", "--outside", "x"), "--outside"),
        (("probe", "gateway", "--name", "g", "--peer", "x"), "--peer"),
        (("probe", "gateway", "--name", "g", "--meet", "x"), "--expect"),
    ],
)
def test_a_flag_that_cannot_be_is_named(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["audit", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2 and words in capsys.readouterr().err
