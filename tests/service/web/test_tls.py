"""TLS over real sockets: who is believed, what is refused, and what a bad file says."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from fastapi import FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from pydantic import ValidationError

from shared.errors import SettingsError
from shared.web import tls as subject
from shared.web.listening import PORT, ListenSettings
from shared.web.outgoing import OutgoingTls, describe_call_failure
from shared.web.tls import CALLS, TlsIdentity, register_expiry_metric
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import Papers, Served


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()

    @app.get("/")
    def look() -> dict[str, str]:
        return {"said": "hello"}

    return app


def ask(url: str, calling: OutgoingTls) -> httpx.Response:
    return httpx.get(url, verify=calling.context, trust_env=False, timeout=LONGEST_SECONDS)


def refusal(url: str, calling: OutgoingTls) -> str:
    """What TLS says to a call that must fail."""
    with pytest.raises(httpx.TransportError) as raised:
        ask(url, calling)
    return describe_call_failure(raised.value)


def test_whoever_believes_the_authority_is_answered_by_a_modern_tls(
    app: FastAPI, papers: Papers, served: Served
) -> None:
    with served(app, ListenSettings(**papers.port())) as url:
        assert url.startswith("https:") and ask(url, OutgoingTls(papers.crt("authority"))).json() == {"said": "hello"}
        assert ask(url.replace("127.0.0.1", "localhost"), OutgoingTls(papers.crt("authority"))).is_success
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(url.replace("https", "http"), trust_env=False)


def test_nobody_else_s_certificate_is_believed(app: FastAPI, papers: Papers, served: Served) -> None:
    with served(app, ListenSettings(**papers.port())) as url:
        assert "not trusted (unable to get local issuer" in refusal(url, OutgoingTls(papers.crt("stranger")))
        assert "not trusted (unable to get local issuer" in refusal(url, OutgoingTls())
    with served(app, ListenSettings(**papers.port("elsewhere"))) as url:
        assert "IP address mismatch" in refusal(url, OutgoingTls(papers.crt("authority")))


def test_a_certificate_that_ends_while_it_is_served_is_no_longer_believed(
    app: FastAPI, papers: Papers, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers.make("service", begun=30, days=10)
    # As if it had ended since: what ended before is not even taken up.
    monkeypatch.setattr(TlsIdentity, "_load", lambda self: self.context.load_cert_chain(self._certificate, self._key))
    with served(app, ListenSettings(**papers.port())) as url:
        assert "not trusted (certificate has expired)" in refusal(url, OutgoingTls(papers.crt("authority")))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_an_old_version_is_refused(app: FastAPI, papers: Papers, served: Served, version: ssl.TLSVersion) -> None:
    calling = OutgoingTls(papers.crt("authority"))
    calling.context.minimum_version = calling.context.maximum_version = version
    calling.context.set_ciphers("ALL:@SECLEVEL=0")
    with served(app, ListenSettings(**papers.port())) as url:
        assert "TLS failed" in refusal(url, calling)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_today_are_spoken_with_forward_secrecy(
    app: FastAPI, papers: Papers, served: Served, version: ssl.TLSVersion
) -> None:
    context = OutgoingTls(papers.crt("authority")).context
    context.minimum_version = context.maximum_version = version
    with served(app, ListenSettings(**papers.port())) as url:
        port = httpx.URL(url).port
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as line,
        ):
            name, spoken, _ = line.cipher() or ("", "", 0)
    assert spoken == version.name.replace("_", ".") and ("GCM" in name or "CHACHA20" in name)
    assert name.startswith(("ECDHE-", "TLS_"))


def test_with_mutual_tls_a_caller_needs_a_certificate_of_the_authority(
    app: FastAPI, papers: Papers, served: Served
) -> None:
    root = papers.crt("authority")
    papers.make("old", begun=30, days=10)
    bare, old = OutgoingTls(root), OutgoingTls(root)
    old.context.load_cert_chain(papers.crt("old"), papers.key("old"))
    with served(app, ListenSettings(**papers.port(mutual=True))) as url:
        assert ask(url, OutgoingTls(root, papers.crt("caller"), papers.key("caller"))).is_success
        impostor = OutgoingTls(root, papers.crt("impostor"), papers.key("impostor"))
        for calling in (bare, impostor, old):
            assert "require a client certificate?" in refusal(url, calling)


def test_without_mutual_tls_a_caller_may_show_what_it_likes(app: FastAPI, papers: Papers, served: Served) -> None:
    calling = OutgoingTls(papers.crt("authority"), papers.crt("impostor"), papers.key("impostor"))
    with served(app, ListenSettings(**papers.port())) as url:
        assert ask(url, calling).is_success


Spoil = Callable[["Papers"], dict[str, Any]]
SPOILT: dict[str, tuple[Spoil, str]] = {
    "no certificate": (
        lambda papers: _without(papers, "service.crt"),
        r"service\.crt: .*file with the certificate \(No such",
    ),
    "no key": (lambda papers: _without(papers, "service.key"), r"service\.key: .*file with the key \(No such"),
    "no authority": (lambda papers: _without(papers, "authority.crt"), r"authority\.crt: .*\(No such"),
    "another's key": (
        lambda papers: papers.port() | {"tls_key": papers.key("caller")},
        "got that of another certificate",
    ),
    "no PEM": (lambda papers: _with(papers, "service.crt", b"hello"), r"service\.crt: expected a certificate as PEM"),
    "no key as PEM": (
        lambda papers: _with(papers, "service.key", b"hello"),
        r"service\.key: expected a private key as PEM",
    ),
    "no authority as PEM": (
        lambda papers: _with(papers, "authority.crt", b"\xff"),
        r"authority\.crt: expected certificates",
    ),
    "a key with a passphrase": (lambda papers: _locked(papers), r"service\.key: .* without a passphrase"),
    "ended": (lambda papers: _made(papers, begun=30, days=10), r"service\.crt: .* valid, got one that ended 20"),
    "not begun": (lambda papers: _made(papers, begun=-1), r"service\.crt: .* valid, got one that begins 20"),
}


def _without(papers: Papers, name: str) -> dict[str, Any]:
    (papers.folder / name).unlink()
    return papers.port(mutual=True)


def _with(papers: Papers, name: str, content: bytes) -> dict[str, Any]:
    (papers.folder / name).write_bytes(content)
    return papers.port(mutual=True)


def _made(papers: Papers, **period: Any) -> dict[str, Any]:
    papers.make("service", **period)
    return papers.port()


def _locked(papers: Papers) -> dict[str, Any]:
    key = papers.make("service").key
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    return _with(papers, "service.key", secret)


@pytest.mark.parametrize("name", SPOILT)
def test_files_of_no_use_are_named_with_what_is_wrong(name: str, papers: Papers) -> None:
    spoil, words = SPOILT[name]
    settings = ListenSettings(**spoil(papers))
    with pytest.raises(SettingsError, match=words):
        settings.identities()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls_certificate": "a"}, "tls_certificate: expected tls_key beside it"),
        ({"tls_key": "a"}, "tls_key: expected tls_certificate beside it"),
        ({"tls_client_authority": "a"}, "tls_client_authority: expected tls_certificate beside it"),
    ],
)
def test_half_a_certificate_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ListenSettings(**given)
    with pytest.raises(SettingsError, match="expected a certificate and its key"):
        OutgoingTls(None, Path("a"), None)


class Journal:
    """Plays a logger."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def _keep(self, level: str) -> Callable[..., None]:
        return lambda event, **_: self.lines.append((level, event))

    def __getattr__(self, level: str) -> Callable[..., None]:
        return self._keep(level)


@pytest.mark.parametrize(("days", "warns"), [(20, False), (14, True), (1, True)])
def test_an_end_that_is_near_is_told_once_a_day(papers: Papers, days: int, warns: bool) -> None:
    papers.make("service", begun=0.5, days=days)
    identity, journal = ListenSettings(**papers.port()).identities()[PORT], Journal()
    for _ in range(3):
        identity.reload_if_changed(journal)  # type: ignore[arg-type]
    assert journal.lines == ([("warning", "certificate_ends")] if warns else [])
    identity._warned -= 2 * subject.DAY_SECONDS
    identity.reload_if_changed(journal)  # type: ignore[arg-type]
    assert len(journal.lines) == 2 * warns


def test_days_that_are_left_are_a_series_and_without_a_certificate_there_is_none(papers: Papers) -> None:
    papers.make("service", begun=0, days=10)
    identities = ListenSettings(**papers.port()).identities()
    identities |= OutgoingTls(None, papers.crt("caller"), papers.key("caller")).identities
    registry = CollectorRegistry()
    register_expiry_metric(identities, "some", registry)
    said = dict(line.rsplit(" ", 1) for line in generate_latest(registry).decode().splitlines() if line[0] != "#")
    assert {name: round(float(value)) for name, value in said.items()} == {
        f'some_certificate_days_left{{use="{PORT}"}}': 10,
        f'some_certificate_days_left{{use="{CALLS}"}}': 364,
    }
    bare = CollectorRegistry()
    register_expiry_metric({}, "some", bare)
    assert generate_latest(bare) == b""


@pytest.fixture
def identity(app: FastAPI, papers: Papers, served: Served) -> Iterator[tuple[str, TlsIdentity]]:
    """An address that is served, and the certificate that it shows."""
    settings = ListenSettings(**papers.port())
    held = settings.identities()
    object.__setattr__(settings, "identities", lambda: held)
    with served(app, settings) as url:
        yield url, held[PORT]


def shown(url: str, papers: Papers) -> int:
    """The serial number of the certificate that a new connection sees."""
    context = OutgoingTls(papers.crt("authority")).context
    with (
        socket.create_connection(("127.0.0.1", httpx.URL(url).port)) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as line,
    ):
        return int((line.getpeercert() or {})["serialNumber"], 16)  # type: ignore[arg-type]


def test_renewed_files_are_taken_up_and_useless_ones_are_not(identity: tuple[str, TlsIdentity], papers: Papers) -> None:
    (url, held), journal = identity, Journal()
    before = shown(url, papers)
    made = papers.make("service").certificate.serial_number
    held.reload_if_changed(journal)  # type: ignore[arg-type]
    assert before != made == shown(url, papers) and journal.lines == [("info", "certificate_renewed")]
    papers.crt("service").write_bytes(b"half of a cert")
    for _ in range(2):
        held.reload_if_changed(journal)  # type: ignore[arg-type]
    assert journal.lines[1:] == [("error", "certificate_refused")] and shown(url, papers) == made
    papers.make("service", begun=30, days=10)
    held.reload_if_changed(journal)  # type: ignore[arg-type]
    assert journal.lines[2:] == [("error", "certificate_refused")] and shown(url, papers) == made
    last = papers.make("service").certificate.serial_number
    held.reload_if_changed(journal)  # type: ignore[arg-type]
    assert shown(url, papers) == last and journal.lines[3:] == [("info", "certificate_renewed")]


def test_files_behind_a_link_that_is_moved_are_seen_as_changed(papers: Papers, tmp_path: Path) -> None:
    """As a kubelet replaces a Secret."""
    link = tmp_path / "link"
    link.symlink_to(papers.folder)
    settings = ListenSettings(tls_certificate=link / "service.crt", tls_key=link / "service.key")
    held, journal = settings.identities()[PORT], Journal()
    (tmp_path / "next").mkdir()
    for name, content in papers.make("service", days=30).pem_files("service").items():
        (tmp_path / "next" / name).write_bytes(content)
    (tmp_path / "moved").symlink_to(tmp_path / "next")
    os.replace(tmp_path / "moved", link)
    held.reload_if_changed(journal)  # type: ignore[arg-type]
    assert journal.lines == [("info", "certificate_renewed")] and 28 < held.days_left < 30
