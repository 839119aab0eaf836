"""An answer -> what the ledger says of it, and whether it brings anything new."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import Any

import httpx
from pydantic import ValidationError

from shared.protocol.schemas import ReceiptOut, RunOut


def read_outcome(call: str, response: httpx.Response) -> dict[str, Any]:
    """Status, size and hash of an answer, and the receipt of an update."""
    digest = hashlib.sha256(response.content).hexdigest()
    outcome: dict[str, Any] = {"status": response.status_code, "bytes": len(response.content), "sha256": digest}
    if call == "update" and response.is_success:
        outcome["receipt"] = _receipt(response.content)
    return outcome


def read_news(call: str, response: httpx.Response) -> str:
    """The same for two answers that differ in nothing but the time that is left."""
    content = response.content
    if call == "current" and response.is_success:
        with suppress(ValidationError):
            content = RunOut.model_validate_json(content).model_dump_json(exclude={"seconds_left"}).encode()
    return f"{response.status_code} {hashlib.sha256(content).hexdigest()}"


def _receipt(content: bytes) -> dict[str, Any] | None:
    """What the aggregator says it holds, or None where it says something else."""
    try:
        return ReceiptOut.model_validate_json(content).model_dump()
    except ValidationError:
        return None
