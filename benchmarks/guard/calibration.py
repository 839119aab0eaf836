"""Fixed pieces of work that tell what this processor does now: what is measured is told as so many times one of them.

Each figure is held against the piece that is like it, so that another machine changes both alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable

import numpy as np

Work = Callable[[], Awaitable[None]]

SIDE = 768
HASHED = 16_000_000


def matrix_product() -> Work:
    """What dense linear algebra is like: a product of two float32 matrices with 768 rows and columns."""
    left, right = np.random.default_rng(0).standard_normal((2, SIDE, SIDE), dtype=np.float32)

    async def multiply() -> None:
        np.matmul(left, right)

    return multiply


def hashing() -> Work:
    """What storing and checking bodies is like: 16 MB are hashed."""
    content = bytes(HASHED)

    async def hash_content() -> None:
        hashlib.sha256(content)

    return hash_content
