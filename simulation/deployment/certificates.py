"""Development authority and the certificates of services. Its key can sign more."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shared.errors import SettingsError
from shared.files import PRIVATE, PUBLIC, write_new

AUTHORITY = "authority"
LOCAL = ("localhost", "127.0.0.1", "::1")
DAYS = 365
CLOCK_SKEW = timedelta(minutes=5)  # for machines whose clocks are behind
ORGANISATION = "LPSFed development (not for production)"


@dataclass(frozen=True)
class IssuedCertificate:
    """A certificate with its private key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey

    def pem_files(self, name: str) -> dict[str, bytes]:
        """Returns the files NAME.crt and NAME.key as PEM."""
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return {f"{name}.crt": self.certificate.public_bytes(Encoding.PEM), f"{name}.key": key}


def development_files(services: Iterable[str], hosts: Iterable[str], *, days: int = DAYS) -> dict[str, bytes]:
    """Makes an authority and a certificate per service, and returns files by name.

    Each certificate is valid for the service's name and for `hosts`.
    """
    root, more = make_authority(days=days), tuple(hosts)
    files: dict[str, bytes] = {}
    for name in services:
        files |= issue_certificate(root, name, (name, *LOCAL, *more), days=days).pem_files(name)
    return root.pem_files(AUTHORITY) | files


def make_authority(name: str = "LPSFed development authority", *, days: int = DAYS) -> IssuedCertificate:
    """Makes an authority that signs itself, and may sign services but no other authority."""
    key = generate_private_key(SECP256R1())
    builder = _certificate_builder(name, key, _validity_period(days)).issuer_name(_subject_name(name))
    usage = _key_usage(signs_certificates=True)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return IssuedCertificate(builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key)


def issue_certificate(
    root: IssuedCertificate, name: str, hosts: Iterable[str], *, days: int = DAYS, begins: datetime | None = None
) -> IssuedCertificate:
    """Issues a certificate for names and addresses, of a server and of a caller."""
    key = generate_private_key(SECP256R1())
    purposes = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(root.key.public_key())
    builder = _certificate_builder(name, key, _validity_period(days, begins)).issuer_name(root.certificate.subject)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(
        x509.SubjectAlternativeName(map(_general_name, dict.fromkeys(hosts))), critical=False
    )
    return IssuedCertificate(builder.add_extension(signer, critical=False).sign(root.key, hashes.SHA256()), key)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files, keys for their owner alone.

    Raises SettingsError if one of them exists; then none is written.
    """
    if existing := sorted(name for name in files if (folder / name).exists()):
        raise SettingsError(f"{folder}: expected none of these files to be there already, got {', '.join(existing)}")
    for name, content in files.items():
        write_new(folder / name, content, PRIVATE if name.endswith(".key") else PUBLIC)


def _validity_period(days: int, begins: datetime | None = None) -> tuple[datetime, datetime]:
    first = begins or datetime.now(UTC) - CLOCK_SKEW
    return first, first + timedelta(days=days)


def _certificate_builder(
    name: str, key: EllipticCurvePrivateKey, period: tuple[datetime, datetime]
) -> x509.CertificateBuilder:
    first, last = period
    builder = x509.CertificateBuilder(subject_name=_subject_name(name), public_key=key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(first).not_valid_after(last)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _subject_name(name: str) -> x509.Name:
    attributes = ((NameOID.ORGANIZATION_NAME, ORGANISATION), (NameOID.COMMON_NAME, name))
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in attributes])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass  # a name, then
    try:
        return x509.DNSName(name)
    except ValueError:
        raise SettingsError(f"expected host names in ASCII, and addresses, got {name!r}") from None


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
