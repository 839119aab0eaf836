"""Errors of the project, as one tree under FederationError."""

from __future__ import annotations

from typing import Literal, NamedTuple

FaultCode = Literal[
    "missing", "unknown", "repeated", "wrong-type", "out-of-range", "wrong-form", "wrong-value", "not-json"
]


class Fault(NamedTuple):
    """Fault of a message, with a stable code for programs.

    at: its place, such as `body.users.0`; "" for the message as a whole.
    """

    code: FaultCode
    at: str
    detail: str


class FederationError(Exception):
    """Root of the project's errors. `code` is stable for programs; messages may change."""

    code = "federation"


class DataError(FederationError):
    """Data set or shard that cannot be used. The message names file and line."""

    code = "data"


class SettingsError(FederationError):
    """Setting that is missing, out of range, or excludes another."""

    code = "settings"


class ProtocolError(FederationError):
    """Message that differs from its declaration.

    The text says what was expected and what came. faults: each fault; by default the text itself is the only one.
    """

    code = "protocol"

    def __init__(self, message: str = "", *, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults or (Fault("wrong-value", "", message),)


class MediaTypeError(ProtocolError):
    """Body whose content type is not the declared one."""

    code = "media-type"


class HeadError(ProtocolError):
    """Request head with more, or in another form, than a client sends."""

    code = "request-head"


class PrivacyError(FederationError):
    """Undeclared data that was about to leave this client; nothing was sent."""

    code = "privacy"


class AuthenticationError(FederationError):
    """Missing secret or signature, or one that belongs to no known caller."""

    code = "authentication"


class ClockError(AuthenticationError):
    """Request signed at another time than now; the text has the clocks' difference."""

    code = "clock"


class ReplayError(AuthenticationError):
    """Signed request that came before. Signed anew, it may come again."""

    code = "replay"


class DigestError(AuthenticationError):
    """Body that differs from the signed one."""

    code = "content-digest"


class ForbiddenError(AuthenticationError):
    """Known caller without permission for this call."""

    code = "forbidden"


class QuarantinedError(ForbiddenError):
    """Caller excluded by the operator or by a rule of the run."""

    code = "quarantined"


class NotFoundError(FederationError):
    """Unknown run, round, client, user or item."""

    code = "not-found"


class ConflictError(FederationError):
    """Message whose address already has one with other content."""

    code = "conflict"


class RoundClosedError(ConflictError):
    """Message that the round does not accept yet, or any more."""

    code = "round-closed"


class TooLargeError(FederationError):
    """Body or request larger than its limit."""

    code = "too-large"


class DamagedError(FederationError):
    """Stored data that differs from what was written; nothing is computed from it."""

    code = "damaged"


class UnavailableError(FederationError):
    """Other side that cannot be reached in time, or this side before it is ready."""

    code = "unavailable"


class UnsettledError(UnavailableError):
    """Database lost while it stored a message; the message may be sent again."""


class StorageFullError(UnavailableError):
    """Disk without room for a message; it may be sent again later."""

    code = "storage-full"
