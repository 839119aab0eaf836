"""A silo's secret and a run's name -> what the draws of its training follow from, beside the run's seed.

In the open mode a run's draws follow from its seed, so that anybody can repeat it. In a secure federation a client
would then make the same update in two runs with the same seed, and the difference of two sums would be one client.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

from shared.errors import SettingsError
from shared.new_files import PRIVATE, write_new

NAME = "draws.secret"
SECRET_BYTES = 32


def read_draw_secret(folder: Path) -> bytes:
    """32 random bytes that never leave, made where there are none. SettingsError for a file that holds others."""
    path = folder / NAME
    write_new(path, secrets.token_bytes(SECRET_BYTES), PRIVATE)
    content = path.read_bytes()
    if len(content) != SECRET_BYTES:
        raise SettingsError(f"{path}: expected {SECRET_BYTES} random bytes, got {len(content)}")
    return content


def write_draw_secret(folder: Path, text: str) -> None:
    """For whoever owns all silos of an experiment: a secret that follows from a text, so that it can be repeated."""
    write_new(folder / NAME, hashlib.sha256(f"draws of {text}".encode()).digest(), PRIVATE)


def derive_draws(secret: bytes, aggregator: str, run: str) -> bytes:
    """Of one run of one federation."""
    return hmac.digest(secret, f"draws of {run} of {aggregator}".encode(), hashlib.sha256)
