"""A bearer secret -> who is calling. The aggregator keeps hashes of 256-bit random secrets, never the secrets."""

from __future__ import annotations

import hashlib
import hmac

from shared.errors import AuthenticationError

LEAST_SECRET = 32  # characters; a fast hash is safe only for secrets that nobody can guess


def bearer(header: str | None) -> str:
    """The secret in an Authorization header."""
    scheme, _, secret = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise AuthenticationError("expected the header 'Authorization: Bearer <secret>'")
    return secret.strip()


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
