"""All clients and the aggregator of one secure round, in one process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import TypeVar

import numpy as np
import pytest

from shared.schemas import Declaration, TensorSpec
from shared.secure import client, recovery, server
from shared.secure.messages import Terms, UnmaskAnswer, least_threshold
from shared.secure.server import SecureRound
from shared.secure.state import Begun, Ready, Sharing, read, written
from shared.secure.vector import MaskedUpdate, Vector
from shared.strategy import Parameters

S = TypeVar("S", Begun, Sharing, Ready)


def terms_for(content: Parameters, clients: int, *, threshold: int | None = None) -> Terms:
    """Terms under which such content is sent: all scalars hidden but rho."""
    tensors = tuple(TensorSpec(name=name, shape=np.shape(value)) for name, value in sorted(content.arrays.items()))
    scalars = tuple(sorted({*content.scalars, "rho"}))
    declaration = Declaration(strategy="lpsfed", tensors=tensors, scalars=scalars)
    hidden = tuple(name for name in scalars if name != "rho")
    least = threshold or least_threshold(clients)
    return Terms(run="run-1", round=3, threshold=least, declaration=declaration, hidden=hidden)


def kept(state: S) -> S:
    """A state after a restart."""
    again = read(written(state))
    assert isinstance(again, type(state)) and again == state
    return again


class Rehearsal:
    """Plays a round phase by phase, each with the clients that are still there; every client restarts all the time."""

    def __init__(self, contents: Mapping[str, Parameters], *, threshold: int | None = None) -> None:
        self.contents = contents
        terms = terms_for(next(iter(contents.values())), len(contents), threshold=threshold)
        self.round = SecureRound(terms=terms)
        self.begun: dict[str, Begun] = {}
        self.sharing: dict[str, Sharing] = {}
        self.ready: dict[str, Ready] = {}
        self.vectors: dict[str, Vector] = {}

    def send_keys(self, names: Iterable[str]) -> None:
        for name in names:
            state, message = client.begin(self.round.terms, name)
            self.begun[name], self.round = kept(state), server.accept(self.round, message)

    def send_shares(self, names: Iterable[str]) -> None:
        roster = server.roster(self.round)
        for name in names:
            state, message = client.share(self.begun[name], roster)
            self.sharing[name], self.round = kept(state), server.accept(self.round, message)

    def take(self, names: Iterable[str]) -> None:
        for name in names:
            self.ready[name] = kept(client.take(self.sharing[name], server.delivery(self.round, name)))

    def mask(self, name: str) -> MaskedUpdate:
        state, update = client.mask(self.ready[name], self.contents[name])
        self.ready[name] = kept(state)
        return update

    def send_masked(self, names: Iterable[str]) -> None:
        for name in names:
            update = self.mask(name)
            self.round = server.accept_masked(self.round, update)
            self.vectors[name] = update.vector

    def answer(self, name: str) -> UnmaskAnswer:
        state, message = client.unmask(self.ready[name], server.request(self.round))
        self.ready[name] = kept(state)
        return message

    def send_answers(self, names: Iterable[str]) -> None:
        for name in names:
            self.round = server.accept(self.round, self.answer(name))

    def close(self) -> None:
        self.round = server.close(self.round)

    def mean(self) -> Parameters:
        return recovery.mean(self.round, self.vectors)

    def until_keys(self, names: Iterable[str]) -> Rehearsal:
        self.send_keys(names)
        self.close()
        return self

    def until_shares(self, names: Iterable[str]) -> Rehearsal:
        self.until_keys(names)
        self.send_shares(self.begun)
        self.close()
        self.take(self.sharing)
        return self

    def play(
        self,
        *,
        before_keys: Iterable[str] = (),
        after_keys: Iterable[str] = (),
        after_shares: Iterable[str] = (),
        after_masked: Iterable[str] = (),
    ) -> Parameters:
        """The whole round -> the mean. Each argument names who is not heard of any more from that point on."""
        here = [name for name in self.contents if name not in before_keys]
        phases = ((self.send_keys, after_keys), (self.send_shares, after_shares), (self._masked, after_masked))
        for send, lost in phases:
            send(here)
            self.close()
            here = [name for name in here if name not in lost]
        self.send_answers(here)
        return self.mean()

    def _masked(self, names: list[str]) -> None:
        self.take(names)
        self.send_masked(names)


def contents_of(clients: int, *, size: int = 5, seed: int = 0) -> dict[str, Parameters]:
    """Two tensors, a margin and a rho of so many clients: ada, bob, cyd ..."""
    rng, names = np.random.default_rng(seed), ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal")[:clients]
    shapes = {"pooling.w": (size,), "predictive.w": (2, size)}
    return {
        name: Parameters(
            {tensor: rng.normal(size=shape).astype(np.float32) for tensor, shape in shapes.items()},
            {"margin": float(rng.uniform(0, 2)), "rho": float(rng.uniform(0, 1))},
        )
        for name in names
    }


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

    def drawn() -> bytes:
        return hashlib.sha256(str(next(numbers)).encode()).digest()

    monkeypatch.setattr("shared.secure.keys.new_private", drawn)
    monkeypatch.setattr("shared.secure.keys.new_seed", drawn)
