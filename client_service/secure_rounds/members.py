"""Members of a federation whose keys this silo trusts.

They come from a members file, or are trusted on first use. On first use the whole set of members is pinned, not a key
for each new name: a later name takes part in no sum of this silo before the silo has consented.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from client_service.runtime.logs import LOGGER
from client_service.secure_rounds.round_memory import RoundMemory
from client_service.settings import ClientSettings
from shared.errors import ConflictError, PrivacyError, SettingsError
from shared.message import Message
from shared.protocol.schemas import ClientName, Digest
from shared.protocol.secure.client import require_members, require_signed_keys
from shared.protocol.secure.messages import FEWEST_CLIENTS, Roster
from shared.protocol.signing.keys import PublicKey, fingerprint, public_key, raw_hex
from shared.protocol.signing.members import Registry, read_registry
from shared.sums import is_sum

AGGREGATOR = ""  # no client has this name
CONSENT = "`lpsfed members accept` shows and takes them"


Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$", examples=["d7" * 32])]


class MemberKeyOut(Message):
    """A client of a secure federation, as this silo knows it."""

    client: str = Field(description="its name", examples=["shop-2"])
    key: Hex32 = Field(description="its public key, of Ed25519, in hexadecimal")
    fingerprint: Digest = Field(description="sha256 of the key: to be compared by telephone")
    agreed: bool = Field(description="did the silo know it when it joined, or has it consented since?")


class MembersOut(Message):
    """Members whose keys this silo trusts in secure rounds, and those that wait for consent."""

    file: bool = Field(description="are they those of a file that the silo pins?")
    members: tuple[MemberKeyOut, ...] = Field(description="by name; none before the first secure run")
    waiting: tuple[MemberKeyOut, ...] = Field((), description="new names, or new keys, of the run that is refused")
    refused: Annotated[str, Field(examples=["run-1"])] | None = Field(
        None, description="the run that waits for the silo's consent"
    )


class AcceptedMembersIn(Message):
    """The silo's operator consents to new members."""

    keys: dict[ClientName, Hex32] = Field(
        min_length=1,
        max_length=1024,
        description="by name, the public key as it was shown",
        examples=[{"shop-4": "d7" * 32}],
    )


class KnownMembers:
    """Members whose keys one silo trusts.

    A changed members file is read again: other silos need no restart when a silo joins.

    `file`: of all members' keys; None if the silo trusts on first use: then the members are pinned in the memory
    when the first secure run shows them. aggregator: its public key in hexadecimal, if configured. known: clients
    that had a key or an invitation when the silo joined. least: number of agreed members that a sum needs.
    """

    def __init__(
        self,
        file: Path | None,
        memory: RoundMemory,
        *,
        aggregator: str | None = None,
        known: Iterable[str] = (),
        least: int = FEWEST_CLIENTS,
    ) -> None:
        """Reads the members file; raises SettingsError for another file."""
        self._file, self._memory = file, memory
        self._told_aggregator, self._known, self._least = aggregator, frozenset(known), least
        self._stamp: tuple[int, int] | None = None
        self._registry: Registry | None = None
        self._waiting: dict[str, str] = {}
        self._refused: str | None = None
        self._read()

    def _read(self) -> Registry | None:
        """Returns the file's present content; raises SettingsError for a file of another form."""
        if (file := self._file) is None:
            return None
        try:
            found = file.stat()
        except OSError as error:
            raise SettingsError(f"{file}: expected a file of members ({error.strerror})") from None
        if self._registry is None or (found.st_mtime_ns, found.st_size) != self._stamp:
            self._registry = read_registry(file)
            self._stamp = found.st_mtime_ns, found.st_size
        return self._registry

    @property
    def _pinned(self) -> dict[str, str]:
        """The clients of the pinned set, and the key of each."""
        return {name: key for name, key in self._memory.pinned.items() if name != AGGREGATOR}

    def aggregator(self, claimed: str | None = None) -> PublicKey:
        """Returns the aggregator's key; on first use pins the claimed one.

        Raises PrivacyError without a known or claimed key.
        """
        if (registry := self._read()) is not None:
            return registry.aggregator
        if self._told_aggregator is not None:
            return public_key(bytes.fromhex(self._told_aggregator))
        if AGGREGATOR not in self._memory.pinned:
            if claimed is None:
                raise PrivacyError("expected an answer signed by the aggregator, got one without a signature")
            self._memory.pin(AGGREGATOR, claimed)
        return public_key(bytes.fromhex(self._memory.pinned[AGGREGATOR]))

    def trusted_keys(self, roster: Roster, own: str, own_key: PublicKey) -> Mapping[str, PublicKey]:
        """Returns the trusted keys for a received roster.

        Raises PrivacyError if the file has another key of this silo itself, because it is then another
        federation's; for a roster with clients that the silo has not consented to; and for one with too few that it
        has.
        """
        if (registry := self._read()) is None:
            return self._pinned_keys(roster, own, own_key)
        if own in registry.clients and raw_hex(registry.clients[own]) != raw_hex(own_key):
            raise PrivacyError(f"members: expected this client's own public key under {own!r}, got another")
        return registry.clients

    def require_enough(self, members: Collection[str], run: str) -> None:
        """Raises PrivacyError for a sum with fewer agreed clients than the policy wants."""
        known = sum(self._has_agreed(name) for name in members)
        if known < self._least:
            raise PrivacyError(
                f"{_describe_too_few(run)}: expected {self._least} or more that it has agreed to, got {known}"
            )

    def _has_agreed(self, name: str) -> bool:
        return name in (self._memory.agreed if self._registry is None else self._registry.clients)

    def _pinned_keys(self, roster: Roster, own: str, own_key: PublicKey) -> Mapping[str, PublicKey]:
        told = {one.client: one.identity for one in roster.members}
        if told.get(own) != raw_hex(own_key):
            raise PrivacyError("expected this client's own public key in the roster, got another or none")
        keys = {name: public_key(bytes.fromhex(key)) for name, key in told.items()}
        pinned = self._pinned
        if not pinned:
            self._pin_first(roster, own, keys)
        elif new := {name: key for name, key in told.items() if pinned.get(name) != key}:
            raise self._ask_consent(new, roster.terms.run)
        self._waiting, self._refused = {}, None
        self.require_enough(keys, roster.terms.run)
        if (others := sum(not self._has_agreed(name) for name in keys)) >= roster.terms.threshold:
            raise PrivacyError(
                f"{_describe_too_few(roster.terms.run)}: expected fewer that it has not agreed to, got {others}"
            )
        return keys

    def _pin_first(self, roster: Roster, own: str, keys: Mapping[str, PublicKey]) -> None:
        """Pins the members of the first secure run.

        Raises PrivacyError if the roster replaces clients that the silo knew when it joined, and for a sum of
        statistics before any members are known.
        """
        told = {one.client: one.identity for one in roster.members}
        known, names = self._known | {own}, frozenset(told)
        if len(known) >= FEWEST_CLIENTS:
            if not (names <= known or known <= names):
                raise self._ask_consent({name: told[name] for name in names - known}, roster.terms.run)
            agreed = names & known
        elif is_sum(roster.terms.declaration):
            raise self._ask_consent({name: key for name, key in told.items() if name != own}, roster.terms.run)
        else:
            agreed = names
        require_members(roster, keys)
        require_signed_keys(roster, keys)  # also those of whom nothing else of this round depends
        if len(names) < FEWEST_CLIENTS:
            raise PrivacyError(
                f"{_describe_too_few(roster.terms.run)}: expected {FEWEST_CLIENTS} or more, got {len(names)}"
            )
        self._memory.pin_members(told, agreed)
        LOGGER.info("members_pinned", members=len(names), agreed=len(agreed))

    def _ask_consent(self, new: Mapping[str, str], run: str) -> PrivacyError:
        if dict(new) != self._waiting or run != self._refused:
            LOGGER.warning("members_wait_for_consent", run=run, members=sorted(new))
        self._waiting, self._refused = dict(new), run
        shown = ", ".join(sorted(new))
        return PrivacyError(f"{run}: expected members that this silo has consented to, got {shown}: {CONSENT}")

    def accept(self, keys: Mapping[str, str]) -> None:
        """Accepts clients with their public keys in hexadecimal.

        Raises ConflictError if the silo uses a members file, and for a key that another member has.
        """
        if self._file is not None:
            raise ConflictError(
                f"expected a silo that trusts on first use, got one with the file {self._file.name}: add them there"
            )
        held = {key: name for name, key in self._pinned.items() if name not in keys}
        if doubled := sorted(name for name, key in keys.items() if key in held) or len({*keys.values()}) < len(keys):
            raise ConflictError(f"expected a different key for each member, got one twice: {doubled}")
        self._memory.pin_members(keys, keys)
        self._waiting = {name: key for name, key in self._waiting.items() if keys.get(name) != key}
        self._refused = self._refused if self._waiting else None

    @property
    def status(self) -> MembersOut:
        """Trusted members, and clients that wait for this silo's consent."""
        registry = self._read()
        keys = self._pinned if registry is None else {name: raw_hex(key) for name, key in registry.clients.items()}
        members = tuple(_describe_key(name, key, agreed=self._has_agreed(name)) for name, key in sorted(keys.items()))
        waiting = tuple(_describe_key(name, key, agreed=False) for name, key in sorted(self._waiting.items()))
        return MembersOut(file=registry is not None, members=members, waiting=waiting, refused=self._refused)

    @property
    def notices(self) -> tuple[str, ...]:
        """Warnings for the silo's operator about clients without consent."""
        if self._waiting:
            shown = ", ".join(sorted(self._waiting))
            return (f"{self._refused} waits for this silo's consent to {shown}: {CONSENT}",)
        if self._file is None and (others := sorted(set(self._pinned) - self._memory.agreed)):
            return (f"{', '.join(others)} take part, and were not named when this silo joined: {CONSENT}",)
        return ()


def open_members(settings: ClientSettings, memory: RoundMemory) -> KnownMembers:
    """Opens the members that this silo knows and trusts, by its settings."""
    return KnownMembers(
        settings.members,
        memory,
        aggregator=settings.aggregator_key,
        known=settings.known_members,
        least=settings.policy.least_members,
    )


def _describe_too_few(run: str) -> str:
    return f"{run}: a sum of too few that this silo knows"


def _describe_key(name: str, key: str, *, agreed: bool) -> MemberKeyOut:
    mark = fingerprint(public_key(bytes.fromhex(key)))
    return MemberKeyOut(client=name, key=key, fingerprint=mark, agreed=agreed)
