"""State of a client for secure rounds, opened from its state directory.

A silo's secret and a run's name say what the draws of its training follow from, beside the run's seed. In the open mode
a run's draws follow from its seed, so that anybody can repeat it. In a secure federation a client would then make the
same update in two runs with the same seed, and the difference of two sums would be one client.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from client_service.runtime.logs import LOGGER
from client_service.secure_rounds.members import KnownMembers
from client_service.secure_rounds.round_memory import RoundMemory
from shared.errors import DataError, PrivacyError, SettingsError
from shared.files import PRIVATE, replace_file, write_new
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunOut
from shared.protocol.secure.common import digest_anchor, digest_method, digest_start
from shared.protocol.secure.graph import COLLUDERS, require_bounds
from shared.protocol.secure.membership import LEAST_SILOS
from shared.protocol.secure.messages import CommonTerms, RoundTerms
from shared.protocol.secure.state import State, find_terms, read_state, write_state
from shared.protocol.secure.tags import PairKeys
from shared.protocol.signing.keys import PrivateKey, raw_hex
from shared.protocol.wire import encode_body, open_parameters

ROUND_FILE = "secure_round.json"


class RoundSecrets:
    """Secrets of this client in the current round; earlier rounds are deleted."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ROUND_FILE

    def save(self, state: State) -> None:
        """Replaces the saved state; it is durable when this returns."""
        replace_file(self._path, write_state(state).encode(), PRIVATE)

    def load(self, run: str, number: int) -> State | None:
        """Loads the saved state of this round; None without a readable one."""
        try:
            state = read_state(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (DataError, UnicodeDecodeError):
            LOGGER.warning(
                "secure_round_refused", reason="expected a complete state of a secure round, got another file"
            )
            return None
        terms = find_terms(state)
        return state if (terms.run, terms.round) == (run, number) else None

    def delete(self) -> None:
        """Deletes the secrets of a round that is over for this client.

        `RoundMemory` still knows that it took part.
        """
        self._path.unlink(missing_ok=True)


def save_start(folder: Path, number: int, given: Parameters) -> None:
    """Saves the parameters that a round begins with; they are durable when this returns.

    The file of round `number` - 2 is replaced.
    """
    replace_file(_path(folder, number), encode_body(given), PRIVATE)


def load_start(folder: Path, number: int, digest: str) -> Parameters:
    """Loads the parameters that a round began with.

    Raises PrivacyError unless they have this digest: an update relative to another start is another report.
    """
    path = _path(folder, number)
    found = open_parameters(path)[1] if path.is_file() else None
    if found is None or digest_start(found) != digest:
        raise PrivacyError(f"{path.name}: expected the start of round {number}, got other content or none")
    return found


def _path(folder: Path, number: int) -> Path:
    return folder / f"secure_start_{number % 2}.safetensors"


NAME = "draws.secret"
SECRET_BYTES = 32


@dataclass(frozen=True)
class Masking:
    """State of a client's secure rounds: keys, members, memory, secrets and policy.

    folder: the client's state directory. noised: the client's updates are differentially private. changing_members: see
    `PublicKeys`. basis_changes: smallest number of silos by whose data two sums of the common basis may differ, as the
    silo's policy says. colluders: share of the members that the graph of a round's neighbours must bear.
    """

    name: str
    identity: PrivateKey
    members: KnownMembers
    memory: RoundMemory
    round_secrets: RoundSecrets
    folder: Path
    draw_secret: bytes = field(repr=False)
    noised: bool = False
    changing_members: bool = False
    basis_changes: int = LEAST_SILOS
    colluders: float = COLLUDERS

    @cached_property
    def pairs(self) -> PairKeys:
        """Keys that this silo agrees on with each other member."""
        return PairKeys(self.identity)

    @property
    def aggregator(self) -> str:
        """Public key of the aggregator, in hexadecimal digits."""
        return raw_hex(self.members.aggregator())

    def draws(self, run: str) -> bytes:
        """Derives the secret random seed of a run's training.

        It is used beside the run's public seed.
        """
        text = f"draws of {run} of {self.aggregator}"
        return hmac.digest(self.draw_secret, text.encode(), hashlib.sha256)

    def stamp(self, training: str, everything: str = "") -> str:
        """Computes a keyed digest of the silo's data for sums, 64 hexadecimal digits.

        32 digits are for its training data, 32 for all its data; each sum uses those that it counts. Without the
        secret the data cannot be guessed from it.
        """
        halves = (f"stamp of {one}".encode() for one in (training, everything or training))
        first, second = (hmac.digest(self.draw_secret, half, hashlib.sha256).hex() for half in halves)
        return first[:32] + second[32:]  # as earlier versions had it, where both are the same

    def remember_start(self, run: str, number: int, given: Parameters, *, whole: bool = False) -> None:
        """Remembers the parameters that a round begins with, as all clients received them.

        whole: save the parameters, not their digest alone.
        """
        if whole:
            save_start(self.folder, number, given)
        self.memory.remember_start(self.aggregator, run, number, digest_start(given))

    def start_of(self, run: str, number: int) -> Parameters:
        """Loads the saved parameters that a round began with.

        Raises PrivacyError if they are not those that were received.
        """
        return load_start(self.folder, number, self.memory.start_of(self.aggregator, run, number))

    def terms(
        self, declaration: Declaration, method: MethodSettings, run: str, number: int, state: RunOut
    ) -> RoundTerms:
        """Builds the terms of a round from what this client received.

        Raises PrivacyError for a round whose start this client did not receive, or that announces a weaker graph than
        its policy allows.
        """
        require_bounds(state.graph, self.colluders)
        common = CommonTerms(
            aggregator=self.aggregator,
            start=self.memory.start_of(self.aggregator, run, number),
            method=digest_method(method),
            seed=state.seed,
            rounds=state.rounds,
            anchor=digest_anchor(method, seed=state.seed, number=number),
            changing_members=state.changing_members,
            graph=state.graph,
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
    basis_changes: int = LEAST_SILOS,
    colluders: float = COLLUDERS,
) -> Masking:
    """Opens the masking from a client's state directory.

    `members`, `memory`: the objects that also check the aggregator's answers.
    """
    round_secrets, secret = RoundSecrets(folder), load_draw_secret(folder)
    opened = (name, identity, members, memory, round_secrets, folder, secret)
    return Masking(*opened, noised, changing_members, basis_changes, colluders)


def load_draw_secret(folder: Path) -> bytes:
    """Reads the draw secret of 32 random bytes, or makes it; it never leaves.

    Raises SettingsError for a file with other content.
    """
    path = folder / NAME
    write_new(path, secrets.token_bytes(SECRET_BYTES), PRIVATE)
    content = path.read_bytes()
    if len(content) != SECRET_BYTES:
        raise SettingsError(f"{path}: expected {SECRET_BYTES} random bytes, got {len(content)}")
    return content


def save_draw_secret(folder: Path, text: str) -> None:
    """Writes a draw secret derived from a text, so that an experiment can be repeated.

    Only for those who own all silos of the experiment.
    """
    write_new(folder / NAME, hashlib.sha256(f"draws of {text}".encode()).digest(), PRIVATE)
