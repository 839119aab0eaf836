"""Join messages and secrets -> the federation's clients, each bound to the secret of its first join."""

from __future__ import annotations

from dataclasses import replace

from aggregator_service.access import hashed, new_hash, same
from aggregator_service.storage.records import Client
from shared.errors import AuthenticationError, ForbiddenError, ProtocolError
from shared.privacy import few_clients
from shared.schemas import Declaration, JoinIn


class Members:
    """Clients by name and by the hash of their secret."""

    def __init__(self, clients: dict[str, Client]) -> None:
        self._by_name = dict(clients)
        self._by_hash = {client.secret_hash: client for client in clients.values()}

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, Client) and self._by_name.get(client.name) == client

    def __getitem__(self, name: str) -> Client:
        return self._by_name[name]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._by_name)

    @property
    def warnings(self) -> tuple[str, ...]:
        return few_clients(len(self))

    def add(self, client: Client) -> None:
        self._by_name[client.name] = client
        self._by_hash[client.secret_hash] = client

    def identify(self, secret: str) -> str:
        """Whose secret this is. Found by its hash, so the time taken says nothing about a secret."""
        found = self._by_hash.get(hashed(secret))
        if found is None:
            raise AuthenticationError("expected the secret of a client that has joined")
        return found.name

    def admit(self, message: JoinIn, secret: str, *, now: float) -> Client:
        """The client as it is after this message; ForbiddenError when name and secret belong to different ones."""
        known = self._by_name.get(message.client)
        if known is not None and not same(known.secret_hash, hashed(secret)):
            raise ForbiddenError(f"the name {message.client!r} is bound to another secret")
        if known is not None:
            return replace(known, counts=message.counts)
        if hashed(secret) in self._by_hash:
            raise ForbiddenError("this secret is bound to another name")
        return Client(message.client, new_hash(secret), message.counts, now)


def require_same(expected: Declaration, observed: Declaration) -> None:
    """ProtocolError unless a client declares exactly what this federation exchanges."""
    if expected.strategy != observed.strategy:
        raise ProtocolError(f"strategy: expected {expected.strategy!r}, got {observed.strategy!r}")
    if expected.scalars != observed.scalars:
        raise ProtocolError(f"scalars: expected {list(expected.scalars)}, got {list(observed.scalars)}")
    ours, theirs = ({spec.name: spec.shape for spec in one.tensors} for one in (expected, observed))
    if ours != theirs or len(ours) != len(observed.tensors):
        raise ProtocolError(f"tensors: expected {ours}, got {theirs}")
