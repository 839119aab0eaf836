"""A silo behind a forward proxy: the way that its settings name, no other, and what it says where that is closed."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from client_service.settings import client_settings
from shared.errors import SettingsError
from shared.web.tls import load_port_identity
from simulation.cli import app as cli
from simulation.experiments.experiment import Experiment
from simulation.joining.invite import write_invitations
from tests.support.federation import bearer
from tests.support.forward_proxy import ForwardProxy, run_proxy
from tests.support.questions import has_problem, read, wait_until
from tests.support.small import small_aggregator

if TYPE_CHECKING:
    from conftest import Papers, Served

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]
NAME = "aggregator.internal"  # which this machine cannot look up
LOGIN, IN_URL = "silo:p@ss/word", "silo:p%40ss%2Fword"
NEEDED: dict[str, Any] = {"name": "east", "shard": "/shard", "state_directory": "/state"}
BEHIND = {"trusted_proxies": ("127.0.0.1",)}  # what the proxy adds to a head
SECRET = "hunter-of-the-tests"


@pytest.fixture
def described(experiment: Callable[..., Experiment]) -> Experiment:
    return experiment("run")


@contextmanager
def aggregator(described: Experiment, served: Served, more: dict[str, Any] | None = None) -> Iterator[int]:
    """A real aggregator; its port."""
    settings = described.make_aggregator_settings().model_copy(update=more or {})
    app = create_aggregator(settings)
    with served(app, settings, app.state.coordinator.wind_down) as url:
        yield int(url.rpartition(":")[2])


@asynccontextmanager
async def silo(
    described: Experiment, url: str, proxy: str | None = None, **way: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A silo with its real way out; its operator's way to it."""
    settings = described.make_client_settings(described.shards[0], aggregator_url=url)
    app = create_client(settings.model_copy(update=way | {"outbound_proxy": proxy and SecretStr(proxy)}))
    http = httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://silo", headers=bearer(described.operator_key)
    )
    async with app.router.lifespan_context(app), http:
        yield http


async def follows(http: httpx.AsyncClient) -> bool:
    """Has it joined, and asks for runs?"""
    status = await read(http, "status")
    return status["phase"] == "waiting" and status.get("problem") is None


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_silo_reaches_an_aggregator_by_tls_through_a_proxy_that_asks_for_a_password(
    scheme: str, described: Experiment, papers: Papers, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(papers.crt("authority")))  # whom a proxy by https is believed by
    papers.make("service", hosts=(NAME, "127.0.0.1"))
    tls = load_port_identity(papers.crt("service"), papers.key("service"), None).context if scheme == "https" else None
    with (
        aggregator(described, served, papers.port()) as port,
        run_proxy(ForwardProxy({f"{NAME}:443": port}, LOGIN), tls) as proxy,
    ):
        way, authority = f"{scheme}://{IN_URL}@127.0.0.1:{proxy.port}", papers.crt("authority")
        async with silo(described, f"https://{NAME}", way, aggregator_authority=authority) as http:
            await wait_until(lambda: follows(http))
    assert set(proxy.asked) == {f"CONNECT {NAME}:443 HTTP/1.1"}
    assert proxy.carried and b"/v1/clients" not in proxy.carried and b"HTTP" not in proxy.carried


async def test_a_silo_reaches_an_aggregator_by_http_through_a_proxy_from_a_file(
    described: Experiment, served: Served, tmp_path: Path
) -> None:
    file = tmp_path / "proxy"
    with aggregator(described, served, BEHIND) as port, run_proxy(ForwardProxy({f"{NAME}:80": port}, LOGIN)) as proxy:
        file.write_text(f"http://{IN_URL}@127.0.0.1:{proxy.port}\n")
        async with silo(described, f"http://{NAME}", outbound_proxy_file=file) as http:
            await wait_until(lambda: follows(http))
    assert f"POST http://{NAME}/v1/clients HTTP/1.1" in proxy.asked


async def test_the_environment_s_proxies_carry_nothing(
    described: Experiment, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with aggregator(described, served) as port, run_proxy(ForwardProxy({f"127.0.0.1:{port}": port})) as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            for written in (name, name.lower()):
                monkeypatch.setenv(written, f"http://127.0.0.1:{proxy.port}")
        async with silo(described, f"http://127.0.0.1:{port}") as http:
            await wait_until(lambda: follows(http))
        assert proxy.asked == []
        async with httpx.AsyncClient() as heeding:  # the trap works
            await heeding.get(f"http://127.0.0.1:{port}/health/live")
    assert proxy.asked == [f"GET http://127.0.0.1:{port}/health/live HTTP/1.1"]


async def test_a_silo_waits_for_a_proxy_that_is_down_and_goes_on_once_it_runs(
    described: Experiment, served: Served
) -> None:
    with aggregator(described, served, BEHIND) as port:
        proxy = ForwardProxy({f"{NAME}:80": port})
        with run_proxy(proxy):
            pass  # its port is known, and free again
        async with silo(described, f"http://{NAME}", f"http://127.0.0.1:{proxy.port}") as http:
            words = "the aggregator cannot be reached: outbound_proxy: no connection through it"
            await wait_until(has_problem(http, words))
            with run_proxy(proxy):
                await wait_until(lambda: follows(http))


def test_a_silo_joins_through_the_proxy_that_its_service_will_take(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = (f"u{user},i{(user * 5 + item) % 12},{1000 * user + item}\n" for user in range(12) for item in range(6))
    (tmp_path / "data.csv").write_text("user,item,time\n" + "".join(rows))
    settings = small_aggregator(tmp_path / "aggregator", **BEHIND)
    monkeypatch.chdir(tmp_path)
    with served(create_aggregator(settings), settings) as url:
        write_invitations(settings, ["north"], f"http://{NAME}", tmp_path)
        with run_proxy(ForwardProxy({f"{NAME}:80": int(url.rpartition(":")[2])}, LOGIN)) as proxy:
            monkeypatch.setenv("LPSFED_CLIENT_OUTBOUND_PROXY", f"http://{IN_URL}@127.0.0.1:{proxy.port}")
            flags = ["--data", "data.csv", "--no-start", "--allow-http"]
            done = CliRunner().invoke(cli, ["join", "north.invite", *flags])
            looked = CliRunner().invoke(cli, ["doctor", "--json", "--aggregator-url", f"http://{NAME}"])
    assert done.exit_code == 0, done.output
    assert json.loads(looked.stdout)[-1]["found"] == "answers with 200 without TLS"
    called = (("POST", "v1/enrolments"), ("GET", "health/live"))
    assert proxy.asked == [f"{method} http://{NAME}/{path} HTTP/1.1" for method, path in called]
    assert client_settings(tmp_path / "north" / "silo.toml").proxy() is not None
    assert IN_URL not in (tmp_path / "north" / "silo.toml").read_text() + done.output


@pytest.mark.parametrize("url", [f"https://{NAME}", f"http://{NAME}"])
async def test_a_proxy_that_refuses_the_password_is_told_without_it(
    url: str, described: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with run_proxy(ForwardProxy({}, LOGIN)) as proxy:
        async with silo(described, url, f"http://silo:{SECRET}@127.0.0.1:{proxy.port}") as http:
            await wait_until(has_problem(http, "outbound_proxy answered 407: expected another user or password"))
            answers = [(await http.get(path)).text for path in ("/v1/status", "/v1/ledger", "/", "/metrics")]
    assert not [text for text in [*answers, *caplog.messages] if SECRET in text] and "who-is-it" not in "".join(answers)


async def test_a_proxy_that_does_not_connect_to_the_aggregator_is_told(described: Experiment) -> None:
    with run_proxy(ForwardProxy({})) as proxy:
        async with silo(described, f"https://{NAME}", f"http://127.0.0.1:{proxy.port}") as http:
            await wait_until(has_problem(http, "outbound_proxy answered 403: it does not connect to the aggregator"))


@pytest.mark.parametrize(
    "url",
    [
        f"socks5://u:{SECRET}@proxy:1080",
        f"u:{SECRET}@proxy:3128",
        f"http://u:{SECRET}#1@proxy:3128",
        f"http://u:{SECRET}/1@proxy:3128",
        f"http://u:{SECRET}@proxy:3128/path",
        f"http://u:{SECRET}@proxy:3128?x",
        f"http://u:{SECRET}@proxy:99999",
        f"http://u:{SECRET}@",
        f"http://u:{SECRET}@proxy:3128\n",
        "",
    ],
)
def test_a_proxy_of_another_form_is_refused_without_its_url(url: str) -> None:
    with pytest.raises(SettingsError, match="outbound_proxy: expected") as raised:
        client_settings(**NEEDED, outbound_proxy=url)
    assert SECRET not in str(raised.value)


def test_the_settings_of_a_proxy_hide_its_url_and_agree_with_the_others(tmp_path: Path) -> None:
    url = f"http://u:{SECRET}@proxy:3128"
    settings = client_settings(**NEEDED, outbound_proxy=url)
    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json() + repr(settings.proxy())
    assert client_settings(**NEEDED).proxy() is None
    assert "without https" in settings.list_warnings()[-1]  # to the proxy, though the aggregator's name is loopback's
    with pytest.raises(SettingsError, match="outbound_proxy: expected either it or outbound_proxy_file, got both"):
        client_settings(**NEEDED, outbound_proxy=url, outbound_proxy_file=tmp_path / "none")
    with pytest.raises(SettingsError, match="outbound_proxy_file: expected a readable text file"):
        client_settings(**NEEDED, outbound_proxy_file=tmp_path / "none")
    with pytest.raises(SettingsError, match="outbound_proxy: expected an aggregator_url that begins with https"):
        client_settings(**NEEDED, outbound_proxy=url, secure=True, trust_on_first_use=True)
