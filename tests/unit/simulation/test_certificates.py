"""`lpsfed certificates`: one authority, one certificate a service, for development; and commands that believe it."""

from __future__ import annotations

import json
import ssl
import stat
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from typer.testing import CliRunner, Result

from shared.errors import SettingsError
from shared.web.listening import ListenSettings
from simulation.cli import app

SERVICES = ("aggregator", "client-1", "client-2", "operator")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tls"
    done = run("certificates", str(made), "--clients", "2", "--name", "silo.example.org", "--name", "10.0.0.7")
    assert done.exit_code == 0, done.output
    return made


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_there_is_one_for_each_service_and_keys_are_their_owner_s_alone(folder: Path) -> None:
    names = {"authority", *SERVICES}
    assert {path.name for path in folder.iterdir()} == {f"{name}.{kind}" for name in names for kind in ("crt", "key")}
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.key")} == {0o600}


def test_each_names_its_service_this_machine_and_what_was_asked_for(folder: Path) -> None:
    for name in SERVICES:
        found = read(folder / f"{name}.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert found.get_values_for_type(x509.DNSName) == [name, "localhost", "silo.example.org"]
        addresses = [str(one) for one in found.get_values_for_type(x509.IPAddress)]
        assert addresses == ["127.0.0.1", "::1", "10.0.0.7"]


def test_each_is_signed_by_the_authority_and_may_sign_nothing(folder: Path) -> None:
    root = read(folder / "authority.crt")
    assert root.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    for name in SERVICES:
        own = read(folder / f"{name}.crt")
        own.verify_directly_issued_by(root)
        assert not own.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        purposes = set(own.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        assert purposes == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    serials = {read(path).serial_number for path in folder.glob("*.crt")}
    assert len(serials) == 1 + len(SERVICES)


def test_they_are_good_for_a_year_and_say_what_they_are_for(folder: Path) -> None:
    for path in folder.glob("*.crt"):
        own = read(path)
        assert own.not_valid_before_utc <= datetime.now(UTC) < own.not_valid_after_utc
        assert own.not_valid_after_utc - own.not_valid_before_utc == timedelta(days=365)
        assert "development (not for production)" in own.subject.rfc4514_string()
    done = run("certificates", str(folder / "more"))
    assert "For development only: authority.key can impersonate" in " ".join(done.stderr.split())


def test_nothing_is_overwritten_and_where_one_file_is_there_none_is_made(folder: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = run("certificates", str(folder))
    assert again.exit_code == 1 and isinstance(again.exception, SettingsError)
    assert "authority.key" in str(again.exception)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    other = tmp_path / "other"
    other.mkdir()
    (other / "client-3.key").write_text("somebody's")
    assert isinstance(run("certificates", str(other)).exception, SettingsError)
    assert [path.name for path in other.iterdir()] == ["client-3.key"]


def test_a_name_that_no_certificate_can_hold_is_named(tmp_path: Path) -> None:
    done = run("certificates", str(tmp_path / "tls"), "--name", "ünïcode.example")
    assert isinstance(done.exception, SettingsError) and "ünïcode" in str(done.exception)
    assert not (tmp_path / "tls").exists()


def test_a_strict_reader_believes_them(folder: Path) -> None:
    """As Python 3.13 and later check by default."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(folder / "authority.crt")
    settings = ListenSettings(tls_certificate=folder / "aggregator.crt", tls_key=folder / "aggregator.key")
    (identity,) = settings.identities().values()
    client, server = (ssl.MemoryBIO(), ssl.MemoryBIO()), (ssl.MemoryBIO(), ssl.MemoryBIO())
    caller = context.wrap_bio(*client, server_hostname="localhost")
    port = identity.context.wrap_bio(*server, server_side=True)
    for _ in range(4):
        for one in (caller, port):
            with suppress(ssl.SSLWantReadError):
                one.do_handshake()
            server[0].write(client[1].read())
            client[0].write(server[1].read())
    assert caller.version() == "TLSv1.3" and caller.getpeercert()


def client_file(tmp_path: Path, **more: str) -> Path:
    said = {"name": "client-1", "shard": "shard", "state_directory": "state", **more}
    path = tmp_path / "client.toml"
    path.write_text("".join(f'{key} = "{value}"\n' for key, value in said.items()))
    return path


def test_the_doctor_reads_the_certificates_that_the_settings_name(folder: Path, tmp_path: Path) -> None:
    port = {"tls_certificate": str(folder / "client-1.crt"), "tls_key": str(folder / "client-1.key")}
    good = run("doctor", "--settings", str(client_file(tmp_path, **port)), "--json")
    (found,) = (one for one in json.loads(good.stdout) if one["name"] == "client settings")
    assert found["good"] and found["found"] == "client 'client-1', certificate (port) for 365 days"
    (folder / "client-1.key").unlink()
    bad = run("doctor", "--settings", str(client_file(tmp_path, **port)), "--json")
    (found,) = (one for one in json.loads(bad.stdout) if one["name"] == "client settings")
    assert bad.exit_code == 1 and not found["good"] and "client-1.key: expected a readable file" in found["found"]
