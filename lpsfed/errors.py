"""What a call can end with other than an answer. No message names a user or an item."""

from __future__ import annotations


class SiloError(Exception):
    """Root of the errors of this client."""


class RefusedError(SiloError):
    """The silo has refused the call, and would do so again.

    status: of HTTP. code: stable, from the silo's problem document, such as `not-found`; empty where another server
    has answered. detail: what was expected and what came, in words. faults: of a 422, each thing that is wrong, by its
    stable code and its place, such as `("out-of-range", "query.k")`.
    """

    def __init__(
        self, call: str, status: int, code: str, detail: str, faults: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(f"{call}: {status} {detail}")
        self.status, self.code, self.detail, self.faults = status, code, detail, faults


class UnreachableError(SiloError):
    """Nobody has answered, or the silo was not able to, at each of several attempts."""


class AnswerError(SiloError):
    """What came back is no answer of a silo: another server is at this address, or one of another version."""
