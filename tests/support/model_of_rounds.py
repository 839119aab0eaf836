"""What a run should do, in terms of sets and dictionaries: the plain model that the round machine is held against."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.errors import ConflictError, FederationError, NotFoundError, RoundClosedError

NAMES = ("east", "north", "south", "west")
DEADLINE_SECONDS = 200.0


@dataclass
class Model:
    """What should be so. `sent`: by round and client, the digest and rho of what was accepted."""

    rounds: int
    clients: int
    quorum: int
    enrolled: set[str]
    now: float = 0.0
    deadline: float = DEADLINE_SECONDS
    phase: str = "waiting"
    round: int = 0
    sent: dict[int, dict[str, tuple[str, float | None]]] = field(default_factory=dict)
    latest: dict[str, float | None] = field(default_factory=dict)

    @property
    def here(self) -> dict[str, tuple[str, float | None]]:
        return self.sent.setdefault(self.round, {})

    def settle(self) -> None:
        """What follows from who is there and what time it is."""
        late = self.now >= self.deadline
        if self.phase == "waiting":
            if len(self.enrolled) >= self.clients:
                self.open(1)
            elif late:
                self.phase = "failed"
        elif self.phase == "open":
            enough, all_there = len(self.here) >= self.quorum, self.here.keys() == self.enrolled
            if enough and (late or all_there):
                self.phase = "aggregated"
            elif late:
                self.phase = "failed"

    def close(self) -> None:
        """The round's state is there."""
        self.latest |= {client: rho for client, (_, rho) in self.here.items()}
        if self.round == self.rounds:
            self.phase = "finished"
        else:
            self.open(self.round + 1)

    def open(self, number: int) -> None:
        self.phase, self.round, self.deadline = "open", number, self.now + DEADLINE_SECONDS

    def refusal(self, client: str, number: int, digest: str) -> type[FederationError] | None:
        """Why this update is refused, or None where it is taken or was before."""
        if client not in self.enrolled:
            return NotFoundError
        if (held := self.sent.get(number, {}).get(client)) is not None:
            return None if held[0] == digest else ConflictError
        return None if (self.phase, self.round) == ("open", number) and self.now < self.deadline else RoundClosedError

    def near(self) -> dict[str, float]:
        """rhobar (Eq. 12), from its definition: over the latest rho of all who ever sent one."""
        known = [rho for rho in self.latest.values() if rho is not None]
        if len(set(known)) < 2:
            return dict.fromkeys(self.latest, 1.0)
        spread = max(known) - min(known)
        return {name: 1.0 if rho is None else (max(known) - rho) / spread for name, rho in self.latest.items()}
