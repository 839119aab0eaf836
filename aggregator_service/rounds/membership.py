"""Join messages -> the federation's clients, each under the name whose key has signed its message."""

from __future__ import annotations

from dataclasses import replace

from aggregator_service.storage.rows import JoinedClient
from shared.errors import AuthenticationError, ForbiddenError, ProtocolError
from shared.method.declaration import Declaration, describe_difference
from shared.protocol.privacy import few_clients
from shared.protocol.schemas import JoinIn


class Members:
    """Clients by name."""

    def __init__(self, clients: dict[str, JoinedClient]) -> None:
        self._by_name = dict(clients)

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, JoinedClient) and self._by_name.get(client.name) == client

    def __getitem__(self, name: str) -> JoinedClient:
        return self._by_name[name]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._by_name)

    @property
    def warnings(self) -> tuple[str, ...]:
        return few_clients(len(self))

    def add_client(self, client: JoinedClient) -> None:
        self._by_name[client.name] = client

    def require_joined(self, name: str) -> None:
        """AuthenticationError for one that has not joined."""
        if name not in self._by_name:
            raise AuthenticationError("expected a client that has joined")

    def admit_client(self, message: JoinIn, signer: str, *, now: float) -> JoinedClient:
        """The client as it is after this message; ForbiddenError where another one has signed it."""
        if message.client != signer:
            raise ForbiddenError(f"expected your own name, {signer!r}, got {message.client!r}")
        known = self._by_name.get(signer)
        return JoinedClient(signer, message.counts, now) if known is None else replace(known, counts=message.counts)


def require_same(expected: Declaration, observed: Declaration) -> None:
    """ProtocolError unless a client declares exactly what this federation exchanges."""
    if (difference := describe_difference(expected, observed)) is not None:
        raise ProtocolError(difference)
