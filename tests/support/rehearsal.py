"""All clients and the aggregator of one secure round, in one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import Parameters, memory_form
from shared.protocol.schemas import GraphBounds
from shared.protocol.secure import client, graph, server, vectors
from shared.protocol.secure.messages import (
    CommonTerms,
    Delivery,
    PublicKeys,
    Roster,
    RoundTerms,
    Sharers,
    UnmaskAnswer,
    least_threshold,
)
from shared.protocol.secure.server import SecureRound
from shared.protocol.secure.state import BegunState, CheckedState, ReadyState, SharingState, read_state, write_state
from shared.protocol.secure.tags import PairKeys
from shared.protocol.secure.vectors import MaskedUpdate, Vector
from shared.protocol.secure.verification import verify_message
from shared.protocol.signing.keys import new_key

S = TypeVar("S", BegunState, SharingState, CheckedState, ReadyState)
NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus", "hal")
IDENTITIES = {name: new_key() for name in NAMES}
TOLD: dict[str, Any] = {
    "aggregator": "0a" * 32,
    "start": "0b" * 32,
    "method": "0c" * 32,
    "seed": 7,
    "rounds": 5,
    "anchor": "0d" * 32,
}


def terms_for(content: Parameters, clients: int, *, threshold: int | None = None, **common: Any) -> RoundTerms:
    """Terms under which such content is sent: all scalars hidden but rho."""
    forms = sorted((name, memory_form(value)) for name, value in content.arrays.items())
    tensors = tuple(TensorSpec.model_validate({"name": name, **form._asdict()}) for name, form in forms)
    scalars = tuple(sorted({*content.scalars, "rho"}))
    declaration = Declaration(strategy="lpsfed", tensors=tensors, scalars=scalars)
    told = CommonTerms(**{**TOLD, **common})
    least = threshold or least_threshold(clients)
    return RoundTerms(run="run-1", round=3, threshold=least, declaration=declaration, common=told)


def roster_of(terms: RoundTerms, members: Iterable[PublicKeys]) -> Roster:
    """The roster of these keys, with the graph that follows from the terms."""
    listed, bounds = tuple(members), terms.common.graph
    return Roster(terms=terms, members=listed, graph=None if bounds is None else graph.plan_graph(len(listed), bounds))


def kept(state: S) -> S:
    """A state after a restart."""
    again = read_state(write_state(state))
    assert isinstance(again, type(state)) and again == state
    return again


class Rehearsal:
    """Plays a round phase by phase, each with the clients that are still there; every client restarts all the time."""

    def __init__(
        self,
        contents: Mapping[str, Parameters],
        *,
        threshold: int | None = None,
        terms: RoundTerms | None = None,
        tags: bool = True,
    ) -> None:
        """tags: without them everything is held against signatures."""
        self.contents = contents
        usual = terms_for(next(iter(contents.values())), len(contents), threshold=threshold)
        self.round = SecureRound(terms=terms or usual)
        self.identities = {name: IDENTITIES.get(name) or new_key() for name in contents}
        self.members = {name: key.public_key() for name, key in self.identities.items()}
        self.begun: dict[str, BegunState] = {}
        self.sharing: dict[str, SharingState] = {}
        self.checked: dict[str, CheckedState] = {}
        self.ready: dict[str, ReadyState] = {}
        self.vectors: dict[str, Vector] = {}
        self.peers: dict[str, str] = {}
        self.pairs = {name: PairKeys(key) if tags else None for name, key in self.identities.items()}

    def tell(self, message: server.RelayedMessage) -> None:
        """Hand a message to the aggregator, which verifies it first."""
        verify_message(self.round, message)
        self.round = server.accept_message(self.round, message)

    def begin(self, name: str, **changed: Any) -> BegunState:
        return client.begin_secure_round(self.round.terms, name, self.identities[name], **changed)

    def send_keys(self, names: Iterable[str]) -> None:
        for name in names:
            self.begun[name] = kept(self.begin(name))
            self.tell(self.begun[name].message)

    def share(self, name: str, roster: Roster | None = None) -> SharingState:
        shown = roster or server.make_roster(self.round)
        return client.share_secrets(self.begun[name], shown, self.members, self.identities[name])

    def send_shares(self, names: Iterable[str]) -> None:
        for name in names:
            self.sharing[name] = kept(self.share(name))
            self.tell(self.sharing[name].message)

    def check(self, name: str, delivery: Delivery | None = None) -> CheckedState:
        given = delivery or server.make_delivery(self.round, name)
        return client.check_shares(self.sharing[name], given, self.identities[name], self.pairs[name])

    def send_checks(self, names: Iterable[str]) -> None:
        for name in names:
            self.checked[name] = kept(self.check(name))
            self.tell(self.checked[name].message)

    def mask(self, name: str) -> MaskedUpdate:
        before = self.ready.get(name) or self.checked[name]
        state, update = client.mask_update(
            before, server.make_sharers(self.round, name), self.contents[name], self.identities[name], self.pairs[name]
        )
        self.ready[name] = kept(state)
        self.peers |= {} if update.header.peers is None else {name: update.header.peers}
        return update

    def sharers(self, names: Iterable[str]) -> Sharers:
        """These sharers, with the draws that they have revealed."""
        listed, place = tuple(names), {"run": self.round.terms.run, "round": self.round.terms.round}
        draws = {name: sent.draw for name, sent in self.round.shares.items() if name in listed and sent.draw}
        return Sharers(**place, sharers=listed, draws=draws)

    def send_masked(self, names: Iterable[str]) -> None:
        for name in names:
            update = self.mask(name)
            vectors.require_declared_vector(self.round.terms.declaration, update.vector, update.header.digest)
            self.round = server.accept_header(self.round, update.header)
            self.vectors[name] = update.vector

    def send_consents(self, names: Iterable[str]) -> None:
        for name in names:
            state, message = client.sign_consent(
                self.ready[name], server.make_unmask_request(self.round), self.identities[name], self.pairs[name]
            )
            self.ready[name] = kept(state)
            self.tell(message)

    def answer(self, name: str) -> UnmaskAnswer:
        return client.answer_unmask_request(self.ready[name], server.make_consents(self.round, name), self.pairs[name])

    def send_answers(self, names: Iterable[str]) -> None:
        for name in names:
            self.tell(self.answer(name))

    def close(self) -> None:
        self.round = server.close_phase(self.round)

    def mean(self) -> Parameters:
        return server.unmask_mean(self.round, self.vectors)

    def until_keys(self, names: Iterable[str]) -> Rehearsal:
        self.send_keys(names)
        self.close()
        return self

    def until_shares(self, names: Iterable[str]) -> Rehearsal:
        self.until_keys(names)
        self.send_shares(self.begun)
        self.close()
        return self

    def until_checks(self, names: Iterable[str]) -> Rehearsal:
        self.until_shares(names)
        self.send_checks(self.sharing)
        self.close()
        return self

    def until_masked(self, names: Iterable[str]) -> Rehearsal:
        self.until_checks(names)
        self.send_masked(self.checked)
        self.close()
        return self

    def play(
        self,
        *,
        before_keys: Iterable[str] = (),
        after_keys: Iterable[str] = (),
        after_shares: Iterable[str] = (),
        after_checks: Iterable[str] = (),
        after_masked: Iterable[str] = (),
        after_consents: Iterable[str] = (),
    ) -> Parameters:
        """The whole round -> the mean. Each argument names who is not heard of any more from that point on."""
        here = [name for name in self.contents if name not in before_keys]
        phases = (
            (self.send_keys, after_keys),
            (self.send_shares, after_shares),
            (self.send_checks, after_checks),
            (self.send_masked, after_masked),
            (self.send_consents, after_consents),
        )
        for send, lost in phases:
            send(here)
            self.close()
            here = [name for name in here if name not in lost]
        self.send_answers(here)
        return self.mean()


class GraphRehearsal(Rehearsal):
    """A round on a graph of neighbours, with as many drop-outs as the threshold bears where no number is given."""

    def __init__(
        self, contents: Mapping[str, Parameters], *, threshold: int | None = None, terms: RoundTerms | None = None
    ) -> None:
        count, first = len(contents), next(iter(contents.values()))
        bounds = GraphBounds(colluders=1, dropouts=1)
        super().__init__(contents, terms=terms or terms_for(first, count, threshold=threshold, graph=bounds))


def many_contents(clients: int) -> dict[str, Parameters]:
    """One small tensor, a margin and a rho of so many clients: silo-000, silo-001 ..."""
    rng = np.random.default_rng(0)
    return {
        f"silo-{number:03d}": Parameters(
            {"pooling.w": rng.normal(size=(3,)).astype(np.float32)}, {"margin": 0.5, "rho": 0.5}
        )
        for number in range(clients)
    }


def contents_of(clients: int, *, size: int = 5, seed: int = 0) -> dict[str, Parameters]:
    """Two tensors, a margin and a rho of so many clients: ada, bob, cyd ..."""
    rng, names = np.random.default_rng(seed), NAMES[:clients]
    shapes = {"pooling.w": (size,), "predictive.w": (2, size)}
    return {
        name: Parameters(
            {tensor: rng.normal(size=shape).astype(np.float32) for tensor, shape in shapes.items()},
            {"margin": float(rng.uniform(0, 2)), "rho": float(rng.uniform(0, 1))},
        )
        for name in names
    }
