"""TLS contexts from certificate files, with one-line errors and renewal at run time.

TLS 1.2 or later; of 1.2 only authenticated ciphers with forward secrecy; no compression, no renegotiation.
"""

from __future__ import annotations

import asyncio
import math
import ssl
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from prometheus_client import CollectorRegistry, Gauge

from shared.errors import SettingsError

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"  # of TLS 1.2; all of TLS 1.3's are of this kind
WARNING_DAYS = 14.0  # before a certificate ends
CERTIFICATE_CHECK_SECONDS = 10.0  # time between two checks of the files for changes
DAY_SECONDS = 86400.0  # time between two warnings that a certificate is about to end
CALLS = "calls"  # key of the certificate that a service shows in its own calls; see also `listening.PORT`


class TlsIdentity:
    """Certificate and key of a port or of outgoing calls, reloaded when renewed.

    Raises SettingsError for files that cannot be read, do not belong together, or are not valid today.
    """

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path) -> None:
        self.context = context
        self._certificate, self._key = certificate, key
        self._ends, self._warned, self._refused = datetime.max.replace(tzinfo=UTC), -math.inf, ""
        self._seen = self._read_stamps()
        self._load()

    @property
    def days_left(self) -> float:
        """Days until the certificate ends; negative once it has."""
        return (self._ends - datetime.now(UTC)).total_seconds() / DAY_SECONDS

    def reload_if_changed(self, logger: structlog.stdlib.BoundLogger) -> None:
        """Loads changed files for new connections, and warns once a day before the end.

        Files that cannot be used are logged once, and the loaded certificate stays.
        """
        if (state := self._read_stamps()) != self._seen:
            try:
                self._load()
                self._seen, self._refused, self._warned = state, "", -math.inf
                logger.info("certificate_renewed", file=str(self._certificate), days_left=round(self.days_left, 1))
            except SettingsError as error:
                self._refuse(str(error), logger)
        if self.days_left < WARNING_DAYS and time.monotonic() - self._warned > DAY_SECONDS:
            self._warned = time.monotonic()
            logger.warning("certificate_ends", file=str(self._certificate), days_left=round(self.days_left, 1))

    def _refuse(self, reason: str, logger: structlog.stdlib.BoundLogger) -> None:
        if reason != self._refused:
            self._refused = reason
            logger.error("certificate_refused", reason=reason)

    def _load(self) -> None:
        certificate, key = _first_certificate(self._certificate), _read_key(self._key)
        if certificate.public_key() != key.public_key():
            raise SettingsError(
                f"{self._key}: expected the key of {self._certificate}, got that of another certificate"
            )
        try:
            self.context.load_cert_chain(self._certificate, self._key)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(f"{self._certificate}: expected a certificate for TLS ({error})") from None
        self._ends = certificate.not_valid_after_utc

    def _read_stamps(self) -> tuple[object, ...]:
        """Returns inode, time and size of both files."""
        return tuple(_file_stamp(path) for path in (self._certificate, self._key))


def load_port_identity(certificate: Path, key: Path, client_authority: Path | None) -> TlsIdentity:
    """Loads a port's certificate.

    client_authority: callers must show a certificate that it has signed.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_ciphers(CIPHERS)
    context.set_alpn_protocols(["http/1.1"])
    if client_authority is not None:
        trust_authority(context, client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return TlsIdentity(context, certificate, key)


async def watch_certificates(identities: Iterable[TlsIdentity], logger: structlog.stdlib.BoundLogger) -> None:
    """Reloads certificates when their files change, until cancelled."""
    while True:
        for identity in identities:
            identity.reload_if_changed(logger)
        await asyncio.sleep(CERTIFICATE_CHECK_SECONDS)


def register_expiry_metric(identities: Mapping[str, TlsIdentity], prefix: str, registry: CollectorRegistry) -> None:
    """Registers the metric of days left for each certificate, if any."""
    if not identities:
        return
    days = Gauge(f"{prefix}_certificate_days_left", "Until the certificate ends", ["use"], registry=registry)
    for use, identity in identities.items():
        days.labels(use).set_function(lambda identity=identity: identity.days_left)  # type: ignore[misc]


def trust_authority(context: ssl.SSLContext, authority: Path) -> None:
    """Adds a file's certificates to a context's trusted ones; SettingsError for no PEM."""
    content = _read_file(authority, "certificates of an authority")
    try:
        context.load_verify_locations(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise SettingsError(f"{authority}: expected certificates of an authority as PEM, got none") from None


def _first_certificate(path: Path) -> x509.Certificate:
    """Reads the first certificate of a file and checks that it is valid now."""
    try:
        own = x509.load_pem_x509_certificates(_read_file(path, "certificate"))[0]
    except ValueError:
        raise SettingsError(f"{path}: expected a certificate as PEM, got none") from None
    now = datetime.now(UTC)
    if now > own.not_valid_after_utc:
        raise SettingsError(
            f"{path}: expected a certificate that is valid, got one that ended {own.not_valid_after_utc}"
        )
    if now < own.not_valid_before_utc:
        raise SettingsError(
            f"{path}: expected a certificate that is valid, got one that begins {own.not_valid_before_utc}"
        )
    return own


def _read_key(path: Path) -> PrivateKeyTypes:
    content = _read_file(path, "key")
    try:
        return load_pem_private_key(content, password=None)
    except (TypeError, ValueError, UnsupportedAlgorithm):  # TypeError: there is a passphrase
        raise SettingsError(f"{path}: expected a private key as PEM without a passphrase, got none") from None


def _read_file(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: expected a readable file with the {what} ({error.strerror})") from None


def _file_stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
