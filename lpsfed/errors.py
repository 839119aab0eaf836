"""Errors of the client. No message names a user or an item."""

from __future__ import annotations


class SiloError(Exception):
    """Root of the errors of this client."""


class RefusedError(SiloError):
    """Refusal by the silo, which would refuse the same call again.

    status: of HTTP. code: stable, from the silo's problem document, such as `not-found`; empty if another server has
    answered. detail: what was expected and what came, in words. faults: of a 422, each thing that is wrong, by its
    stable code and its place, such as `("out-of-range", "query.k")`.
    """

    def __init__(
        self, call: str, status: int, code: str, detail: str, faults: tuple[tuple[str, str], ...] = ()
    ) -> None:
        super().__init__(f"{call}: {status} {detail}")
        self.status, self.code, self.detail, self.faults = status, code, detail, faults


class UnreachableError(SiloError):
    """Call without an answer after several attempts, or a silo that is not ready."""


class AnswerError(SiloError):
    """Answer that is no silo's: another server, or another version, is at this address."""
