"""A whole federation by mutual TLS over real sockets: services, commands and the report; and who is kept out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx
import pytest
from typer.testing import CliRunner, Result

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from client_service.boundary.retry_schedule import RetrySchedule
from shared.errors import SettingsError
from shared.web.outgoing import OutgoingTls
from simulation.cli import app as cli
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Federation, execute_run

if TYPE_CHECKING:
    from conftest import Papers, Served, Until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]


@pytest.fixture
def described(experiment: Callable[..., Experiment]) -> Experiment:
    return experiment("run")


@contextmanager
def aggregator(described: Experiment, papers: Papers, served: Served) -> Iterator[str]:
    """An aggregator that accepts only callers with a certificate."""
    settings = described.make_aggregator_settings().model_copy(update=papers.port(mutual=True))
    app = create_aggregator(settings)
    with served(app, settings, app.state.coordinator.wind_down) as url:
        yield url


@contextmanager
def silo(described: Experiment, papers: Papers, served: Served, url: str, number: int, **way: Any) -> Iterator[str]:
    """A client that listens by TLS; `way`: how it calls the aggregator."""
    settings = described.make_client_settings(described.shards[number], aggregator_url=url).model_copy(
        update=papers.port() | way
    )
    with served(create_client(settings), settings) as own:
        yield own


def way(papers: Papers) -> dict[str, Path]:
    return {
        "aggregator_authority": papers.crt("authority"),
        "tls_client_certificate": papers.crt("caller"),
        "tls_client_key": papers.key("caller"),
    }


@asynccontextmanager
async def calling(url: str, token: str, how: OutgoingTls) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {token}"}
    brief = httpx.Limits(keepalive_expiry=1.0)  # shorter than the service's, which may hang up while a call is sent
    made = httpx.AsyncClient(base_url=url, headers=headers, verify=how.context, limits=brief, trust_env=False)
    async with made as http:
        yield http


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


async def test_a_run_and_its_report_by_mutual_tls(
    described: Experiment, papers: Papers, served: Served, tmp_path: Path
) -> None:
    how = OutgoingTls(papers.crt("authority"), papers.crt("caller"), papers.key("caller"))
    for name in ("token", "operator_key"):
        (tmp_path / name).write_text(getattr(described, name))
    with ExitStack() as services:
        url = services.enter_context(aggregator(described, papers, served))
        urls = {
            name: services.enter_context(silo(described, papers, served, url, number, **way(papers)))
            for number, name in enumerate(described.names)
        }
        async with AsyncExitStack() as stack:
            operator = await stack.enter_async_context(calling(url, described.token, how))
            clients = {
                name: await stack.enter_async_context(calling(place, described.operator_key, how))
                for name, place in urls.items()
            }
            outcome = await execute_run(Federation(operator, clients), described.run_request(), lambda _: None)
            assert outcome.history.phase == "finished" and not any(one.missing for one in outcome.history.rounds)
            left = (await clients["client-1"].get("/metrics")).text
        said = ["--operator-token-file", str(tmp_path / "token"), "--aggregator-url", url, "--json"]
        said += ["--ca", str(papers.crt("authority"))]
        shown = ["--certificate", str(papers.crt("caller")), "--certificate-key", str(papers.key("caller"))]
        asked = [word for name, place in urls.items() for word in ("--client", f"{name}={place}")]
        asked += [word for name in urls for word in ("--operator-key", f"{name}={tmp_path / 'operator_key'}")]
        report = await anyio.to_thread.run_sync(run, "privacy-report", "--records-only", *said, *shown, *asked)
        followed = await anyio.to_thread.run_sync(run, "run", *said, *shown, "--if-none")
        kept_out = await anyio.to_thread.run_sync(run, "privacy-report", "--records-only", *said, *asked)
    assert report.exit_code == 0 and json.loads(report.stdout)["held"] is True, report.output
    assert followed.exit_code == 0 and json.loads(followed.stdout)["phase"] == "finished"
    assert kept_out.exit_code == 1 and "does it require a client certificate?" in str(kept_out.exception)
    assert {f'days_left{{use="{use}"}}' in left for use in ("port", "calls")} == {True}


@pytest.mark.parametrize(
    ("spoilt", "words"),
    [
        ({"tls_client_certificate": None, "tls_client_key": None}, "does it require a client certificate?"),
        ({"aggregator_authority": "stranger"}, "the aggregator cannot be reached: its certificate is not trusted"),
        ({"tls_client_certificate": "impostor", "tls_client_key": "impostor"}, "does it require a client certificate?"),
    ],
    ids=["none", "another authority", "a stranger's certificate"],
)
async def test_a_silo_that_is_kept_out_says_why(
    spoilt: dict[str, str | None],
    words: str,
    described: Experiment,
    papers: Papers,
    served: Served,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One try: a second one could be cut off in its handshake.
    monkeypatch.setattr(RetrySchedule, "record_failure", lambda schedule, _: schedule.delay(60.0))
    files = {"tls_client_key": papers.key}
    wrong = {name: name_of and files.get(name, papers.crt)(name_of) for name, name_of in spoilt.items()}
    with (
        aggregator(described, papers, served) as url,
        silo(described, papers, served, url, 0, **way(papers) | wrong) as own,
    ):
        async with calling(own, described.operator_key, OutgoingTls(papers.crt("authority"))) as http:

            async def told() -> bool:
                return words in (await http.get("/v1/status")).json().get("problem", "")

            await until(told)


def test_a_command_that_does_not_believe_the_aggregator_says_so_at_once(
    described: Experiment, papers: Papers, served: Served, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text(described.token)
    with aggregator(described, papers, served) as url:
        done = run("run", "--operator-token-file", str(tmp_path / "token"), "--aggregator-url", url)
        checks = {
            believed: run("doctor", "--json", "--aggregator-url", url, *way_of(papers, believed))
            for believed in ("authority", "stranger")
        }
    assert isinstance(done.exception, SettingsError) and "its certificate is not trusted" in str(done.exception)
    found = {name: json.loads(done.stdout)[-1] for name, done in checks.items()}
    assert found["authority"] == {"name": "aggregator", "good": True, "found": "answers with 200 by TLS"}
    assert not found["stranger"]["good"] and "not trusted" in found["stranger"]["found"]


def way_of(papers: Papers, authority: str) -> list[str]:
    files = (papers.crt(authority), papers.crt("caller"), papers.key("caller"))
    return [
        str(word) for pair in zip(("--ca", "--certificate", "--certificate-key"), files, strict=True) for word in pair
    ]
