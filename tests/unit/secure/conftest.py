"""Rehearsals of secure rounds as fixtures, and keys that are the same in every run of a test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import count

import pytest

from shared.method.parameters import Parameters
from shared.protocol.secure.group import ORDER
from tests.support.rehearsal import Rehearsal, contents_of


@pytest.fixture(scope="session")
def rehearsal() -> type[Rehearsal]:
    return Rehearsal


@pytest.fixture(scope="session")
def contents() -> Callable[..., dict[str, Parameters]]:
    return contents_of


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and seeds are the same in every run of a test, so that a statistic of masks cannot fail by chance."""
    numbers = count()

    def draw() -> int:
        return 1 + int.from_bytes(hashlib.sha256(str(next(numbers)).encode()).digest()) % (ORDER - 1)

    monkeypatch.setattr("shared.protocol.secure.group.draw_scalar", draw)
