"""Checks of this machine and its settings: what was expected and what was found."""

from __future__ import annotations

import importlib
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

import httpx

from client_service.runtime.device import choose_device
from client_service.settings import client_settings, read_outbound_proxy
from shared.errors import DataError, FederationError, UnavailableError
from shared.web.address import require_url
from shared.web.outgoing import OutgoingTls, describe_call_failure
from shared.words import count_noun

MIN_PYTHON = (3, 11)
MIN_FREE_BYTES = 1 << 30
CALL_SECONDS = 10.0
REQUIRED_PACKAGES = ("fastapi", "httpx", "numpy", "polars", "pydantic", "safetensors", "scipy", "torch", "uvicorn")


@dataclass(frozen=True)
class Check:
    """One check: its name, whether it passed, and what was found."""

    name: str
    good: bool
    found: str


def check_machine(*, shard: Path | None, folder: Path, ports: tuple[int, ...], settings: Path | None) -> list[Check]:
    """Runs all checks that apply to the given arguments. A failed check is no error."""
    checks = [
        _run_check("python", _python_version),
        *(_run_check(name, partial(_package_version, name)) for name in REQUIRED_PACKAGES),
    ]
    checks.append(_run_check("device", lambda: " because ".join(map(str, choose_device("auto")))))
    checks.append(_run_check("disk", partial(_free_disk, folder)))
    checks += [_run_check(f"port {port}", partial(_require_free_port, port)) for port in ports]
    if shard is not None:
        checks.append(_run_check("shard", partial(_describe_shard, shard)))
    if settings is not None:
        checks.append(_run_check("client settings", partial(_describe_settings, settings)))
    return checks


def check_aggregator(url: str, tls: OutgoingTls, settings: Path | None = None) -> Check:
    """Checks that an aggregator answers at this address, with a certificate of the authority.

    settings: of the client whose outbound proxy leads there.
    """
    return _run_check("aggregator", lambda: _describe_aggregator(url, tls, settings))


def _run_check(name: str, probe: Callable[[], str]) -> Check:
    try:
        return Check(name, True, probe())
    except (FederationError, OSError, ImportError) as error:
        return Check(name, False, str(error))


def _python_version() -> str:
    if sys.version_info < MIN_PYTHON:
        raise DataError(f"expected Python {MIN_PYTHON[0]}.{MIN_PYTHON[1]} or newer, got {sys.version.split()[0]}")
    return sys.version.split()[0]


def _package_version(name: str) -> str:
    importlib.import_module(name)
    return version(name)


def _free_disk(folder: Path) -> str:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < MIN_FREE_BYTES:
        raise DataError(f"expected at least 1 GiB free at {existing}, got {free / (1 << 30):.2f} GiB")
    return f"{free / (1 << 30):.0f} GiB free at {existing}"


def _require_free_port(port: int) -> str:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise UnavailableError(f"expected a free port, {port} is in use") from None
    return "free"


def _describe_settings(file: Path) -> str:
    """Describes the settings, and the certificates that they name."""
    settings = client_settings(file)
    tls = OutgoingTls(settings.aggregator_authority, settings.tls_client_certificate, settings.tls_client_key)
    held = settings.identities() | tls.identities
    left = "".join(f", certificate ({use}) for {identity.days_left:.0f} days" for use, identity in held.items())
    return f"client {settings.name!r}{left}"


def _describe_aggregator(url: str, tls: OutgoingTls, settings: Path | None) -> str:
    url, proxy = require_url(url), read_outbound_proxy(settings)
    try:
        answer = httpx.get(f"{url}/health/live", timeout=CALL_SECONDS, trust_env=False, verify=tls.context, proxy=proxy)
    except httpx.TransportError as error:
        raise UnavailableError(
            f"{url}: expected an aggregator that answers, got {describe_call_failure(error)}"
        ) from None
    return f"answers with {answer.status_code} {'by TLS' if answer.url.scheme == 'https' else 'without TLS'}"


def _describe_shard(path: Path) -> str:
    from client_service.data.interaction_files import load_shard, shard_head  # imports polars, for a shard alone

    head = shard_head(load_shard(path))
    sizes = ((head.users, "user"), (head.items, "item"), (head.train, "training interaction"))
    return ", ".join(count_noun(number, one) for number, one in sizes)
