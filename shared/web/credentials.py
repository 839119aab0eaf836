"""Secrets in Authorization headers and settings, and checks that they are strong."""

from __future__ import annotations

import base64
import hmac
import re
from pathlib import Path

from pydantic import SecretStr

from shared.errors import AuthenticationError

OPERATOR = "operator"  # the user name that a browser sends along with the operator's secret
FEWEST_CHARACTERS = 6  # different ones; 32 random hexadecimal digits have fewer once in 10^12 times
# Words of a secret that somebody copied from an example and never changed; a random secret holds none of them.
EXAMPLE_WORDS = re.compile(
    "change.?me|default|example|insecure|password|placeholder|replace.?me|your.(key|token|secret)", re.I
)


def read_bearer_secret(header: str | None) -> str:
    """Returns the bearer secret of an Authorization header."""
    scheme, _, secret = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise AuthenticationError("expected the header 'Authorization: Bearer <secret>', got none or another form")
    return secret.strip()


def read_operator_secret(header: str | None) -> str:
    """Returns the operator's secret: a bearer secret, or the password of user `operator`."""
    scheme, _, coded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return read_bearer_secret(header)
    try:
        user, _, password = base64.b64decode(coded.strip(), validate=True).decode().partition(":")
    except ValueError:  # neither base64 nor UTF-8
        raise AuthenticationError(f"expected base64 of '{OPERATOR}:<token>' after 'Basic', got another text") from None
    if user != OPERATOR:
        raise AuthenticationError(f"expected the user {OPERATOR!r}, got another")
    return password


def is_same_secret(left: str, right: str) -> bool:
    """Tells whether two texts are equal, in a time that does not depend on them."""
    return hmac.compare_digest(left.encode("utf-8", "surrogateescape"), right.encode("utf-8", "surrogateescape"))


def read_secret_setting(name: str, value: SecretStr | None, file: Path | None, least: int) -> str | None:
    """Returns the secret of a setting or of its file `<name>_file`, else None.

    Raises ValueError if both are given, the file cannot be read, or the secret is shorter than `least` characters.
    """
    if value is not None and file is not None:
        raise ValueError(f"{name}: expected either it or {name}_file, got both")
    if value is None and file is None:
        return None
    secret = _read_secret_file(name, file) if value is None else value.get_secret_value()
    if len(secret) < least:
        raise ValueError(f"{name}: expected at least {least} characters, got {len(secret)}")
    return secret


def require_strong_secret(name: str, secret: str) -> None:
    """Raises ValueError for a secret copied from an example, or with too few different characters."""
    if EXAMPLE_WORDS.search(secret):
        raise ValueError(f"{name}: expected your own secret, got one copied from an example: set a random one")
    if len(set(secret)) < FEWEST_CHARACTERS:
        raise ValueError(f"{name}: expected a random secret, got one with {len(set(secret))} different characters")


def _read_secret_file(name: str, file: Path | None) -> str:
    try:
        return Path(file or "").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name}_file: expected a readable text file ({error})") from None
