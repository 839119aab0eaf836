"""All that a client has and remembers for secure rounds, opened from its state directory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from client_service.secure.draws import derive_draws, read_draw_secret
from client_service.secure.members import KnownMembers
from client_service.secure.memory import RoundMemory
from client_service.secure.vault import Vault
from shared.method.declaration import Declaration
from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunOut
from shared.protocol.secure.common import digest_anchor, digest_method, digest_start
from shared.protocol.secure.messages import CommonTerms, RoundTerms
from shared.protocol.signing.keys import PrivateKey, raw_hex


@dataclass(frozen=True)
class Masking:
    """Of one client. `noised`: what it sends is differentially private; `changing_members`: the silo bears it that a
    change of itself alone may tell its update."""

    name: str
    identity: PrivateKey
    members: KnownMembers
    memory: RoundMemory
    vault: Vault
    draw_secret: bytes = field(repr=False)
    noised: bool = False
    changing_members: bool = False

    @property
    def _aggregator(self) -> str:
        """The key of the aggregator, which has answered before anything here is asked for."""
        return raw_hex(self.members.aggregator())

    def draws(self, run: str) -> bytes:
        """What the training of a run draws from, beside its seed."""
        return derive_draws(self.draw_secret, self._aggregator, run)

    def remember_start(self, run: str, number: int, given: Parameters) -> None:
        """Round `number` begins with these parameters, as everybody was given them."""
        self.memory.remember_start(self._aggregator, run, number, digest_start(given))

    def terms(
        self, declaration: Declaration, method: MethodSettings, run: str, number: int, state: RunOut
    ) -> RoundTerms:
        """What this client takes the round to be held on, from what it was told. PrivacyError for a round of whose
        beginning it was told nothing, and where the run says no threshold."""
        common = CommonTerms(
            aggregator=self._aggregator,
            start=self.memory.start_of(self._aggregator, run, number),
            method=digest_method(method),
            seed=state.seed,
            rounds=state.rounds,
            anchor=digest_anchor(method, seed=state.seed, number=number),
            changing_members=state.changing_members,
        )
        assert state.threshold is not None
        return RoundTerms(run=run, round=number, threshold=state.threshold, declaration=declaration, common=common)


def open_masking(
    name: str,
    folder: Path,
    identity: PrivateKey,
    members: KnownMembers,
    memory: RoundMemory,
    *,
    noised: bool,
    changing_members: bool,
) -> Masking:
    """From a client's state directory. `members`, `memory`: as they are used for the aggregator's answers too."""
    return Masking(
        name=name,
        identity=identity,
        members=members,
        memory=memory,
        vault=Vault(folder),
        draw_secret=read_draw_secret(folder),
        noised=noised,
        changing_members=changing_members,
    )
