"""Every error the project raises on purpose, as one tree under FederationError."""

from __future__ import annotations

from typing import Literal, NamedTuple

FaultCode = Literal[
    "missing", "unknown", "repeated", "wrong-type", "out-of-range", "wrong-form", "wrong-value", "not-json"
]


class Fault(NamedTuple):
    """One thing that is wrong with a message, of a kind that programs may match on. at: where, such as `body.users.0`,
    "" for the message as a whole."""

    code: FaultCode
    at: str
    detail: str


class FederationError(Exception):
    """Root of the tree. `code` is part of the public interface: programs match on it, wording may change."""

    code = "federation"


class DataError(FederationError):
    """A data set or shard cannot be used. The message names the file, and the line where there is one."""

    code = "data"


class SettingsError(FederationError):
    """A setting is missing, out of range, or excludes another."""

    code = "settings"


class ProtocolError(FederationError):
    """A message differs from its declaration; the message says what was expected and what came.

    faults: each thing that is wrong; by default the message itself is the one.
    """

    code = "protocol"

    def __init__(self, message: str = "", *, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults or (Fault("wrong-value", "", message),)


class MediaTypeError(ProtocolError):
    """The body is not of the one kind that it may be."""

    code = "media-type"


class HeadError(ProtocolError):
    """A request's head has more in it than a client sends, or says it in another way."""

    code = "request-head"


class PrivacyError(FederationError):
    """Something undeclared was about to leave this client; nothing was sent."""

    code = "privacy"


class AuthenticationError(FederationError):
    """The caller's secret or signature is missing, or nobody's."""

    code = "authentication"


class ClockError(AuthenticationError):
    """The request was signed at another time than now; the message says by how much the clocks differ."""

    code = "clock"


class ReplayError(AuthenticationError):
    """The very same signed request came before. Signed anew, it may come again."""

    code = "replay"


class DigestError(AuthenticationError):
    """The body is not the one that was signed."""

    code = "content-digest"


class ForbiddenError(AuthenticationError):
    """The caller is known, but by another name or in another role."""

    code = "forbidden"


class QuarantinedError(ForbiddenError):
    """The caller is shut out by the operator or by a rule of the run: nothing that it sends is taken."""

    code = "quarantined"


class NotFoundError(FederationError):
    """There is no such run, round, client, user or item."""

    code = "not-found"


class ConflictError(FederationError):
    """A message with the same address came before, with other content."""

    code = "conflict"


class RoundClosedError(ConflictError):
    """The round does not accept this message (any more, or yet)."""

    code = "round-closed"


class TooLargeError(FederationError):
    """A body or a request is larger than its limit."""

    code = "too-large"


class DamagedError(FederationError):
    """What the disk gives back is not what was stored; nothing is computed from it."""

    code = "damaged"


class UnavailableError(FederationError):
    """The other side cannot be reached within its deadline, or this side is not ready yet."""

    code = "unavailable"


class UnsettledError(UnavailableError):
    """This side's database was lost while it stored what came: it may be stored or not, and may be sent again."""


class StorageFullError(UnavailableError):
    """This side's disk has no room for what came. The same message may be sent again once it has."""

    code = "storage-full"
