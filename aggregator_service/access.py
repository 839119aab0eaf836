"""An Authorization header -> the secret in it; of 256-bit random secrets the aggregator keeps hashes alone."""

from __future__ import annotations

import base64
import hashlib
import hmac

from shared.errors import AuthenticationError

LEAST_SECRET = 32  # characters; a fast hash is safe only for secrets that nobody can guess
OPERATOR = "operator"  # the user name that a browser sends along with the operator's token


def bearer(header: str | None) -> str:
    """The secret in an Authorization header."""
    scheme, _, secret = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise AuthenticationError("expected the header 'Authorization: Bearer <secret>'")
    return secret.strip()


def operator_secret(header: str | None) -> str:
    """The secret in the operator's Authorization header: a bearer's, or the password of the user `operator`."""
    scheme, _, coded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return bearer(header)
    try:
        user, _, password = base64.b64decode(coded.strip(), validate=True).decode().partition(":")
    except ValueError:  # neither base64 nor UTF-8
        raise AuthenticationError(f"expected base64 of '{OPERATOR}:<token>' after 'Basic', got another text") from None
    if user != OPERATOR:
        raise AuthenticationError(f"expected the user {OPERATOR!r}, got another")
    return password


def hashed(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def same(left: str, right: str) -> bool:
    """Equality in a time that does not tell where two texts differ."""
    return hmac.compare_digest(left.encode(), right.encode())


def new_hash(secret: str) -> str:
    """The hash to bind to a name at its first join; a short secret is refused."""
    if len(secret) < LEAST_SECRET:
        raise AuthenticationError(f"expected a secret of at least {LEAST_SECRET} characters, got {len(secret)}")
    return hashed(secret)
