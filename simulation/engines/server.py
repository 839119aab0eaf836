"""The aggregator's half of a run in memory: a strategy's start, its state after each round, and each client's answer.

The functions are the strategy's own, and the state is stored as the aggregator service stores it, so that both compute
from the very same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from aggregator_service.aggregation.bodies import pack_state, unpack_state
from aggregator_service.rounds.history import told_scalars, visible_scalars
from shared.method.exchanged import Parameters, Scalars, State, Update
from shared.protocol.schemas import ParticipantOut, RunIn
from shared.protocol.wire import check, decode, encode
from shared.strategies import strategy_of_part


class RunServer:
    """Of one run. `state`: after the last round that was closed, or where the run begins."""

    def __init__(self, request: RunIn, strategy: str) -> None:
        self.strategy = strategy_of_part(request.part, strategy, request.method)
        self._declaration = self.strategy.declaration(request.method)
        self.start = encode(Parameters(self.strategy.start(request.method, request.seed)))
        self.state = State(decode(self.start)[1].arrays)

    def restore(self, stored: bytes, latest: Mapping[str, Scalars]) -> None:
        """Go on from a state that was stored."""
        self.state = unpack_state(decode(stored)[1], latest)

    def close_round(self, bodies: Mapping[str, bytes]) -> bytes:
        """Aggregate the updates of a round, by client; the state after it, as it is stored. ProtocolError for an update
        that was not declared."""
        after = self.strategy.aggregate(self.state, [self.read_update(*item) for item in sorted(bodies.items())])
        stored = encode(pack_state(after))
        self.restore(stored, after.latest)
        return stored

    def answer(self, client: str, body: bytes) -> bytes:
        """What a client gets for its update after the round."""
        return encode(self.strategy.personalise(self.state, self.read_update(client, body)))

    def read_update(self, client: str, body: bytes) -> Update:
        """A body as an update. ProtocolError for what was not declared."""
        specification, content = decode(body)
        check(self._declaration, specification, content)
        return Update(client, content.arrays, content.scalars)

    def describe_update(self, client: str, body: bytes, received_at: str) -> ParticipantOut:
        """A client's row in the history of the round just closed."""
        return ParticipantOut(
            client=client,
            received=True,
            size=len(body),
            digest=hashlib.sha256(body).hexdigest(),
            received_at=received_at,
            scalars=visible_scalars(self.strategy, self.state.latest.get(client, {})),
            told=dict(told_scalars(self.strategy, self.state.latest, client)),
        )
