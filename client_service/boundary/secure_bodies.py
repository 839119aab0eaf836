"""Checks of the bodies that a client sends in a secure round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from shared.errors import PrivacyError, ProtocolError
from shared.method.declaration import Declaration
from shared.protocol.masked_wire import decode_masked
from shared.protocol.secure.messages import ClientMessage, Consent, PublicKeys, SealedShares, ShareCheck, UnmaskAnswer
from shared.protocol.secure.vectors import SCALARS, MaskedUpdate
from shared.protocol.wire import tensor_names

MESSAGES: Mapping[str, type[ClientMessage]] = {
    "keys": PublicKeys,
    "shares": SealedShares,
    "checks": ShareCheck,
    "consents": Consent,
    "answers": UnmaskAnswer,
}
ANSWERED = {"keys": "roster", "shares": "delivery", "checks": "sharers", "consents": "signatures"}
"""Messages of a secure round whose answer may bring what their phase has led to, as the call of that name does."""
FETCHED = ("roster", "delivery", "sharers", "request", "signatures")  # what a client asks for in a secure round


def message_entry(call: str, client: str, place: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """Describes a message of a secure round for the ledger: which clients it concerns.

    The entry has the hash of the message itself. Raises PrivacyError for another body.
    """
    try:
        message = MESSAGES[call].model_validate_json(body)
    except ValidationError:
        raise PrivacyError(f"expected the {call} of a secure round, got another body") from None
    if body != message.model_dump_json().encode():  # repeated fields and spaces could carry anything
        raise PrivacyError(f"expected the {call} as this client writes them, got another form of them")
    _require_own(message, client, place)
    return {"concerns": _concerned_clients(message)}


def decode_masked_update(declaration: Declaration, client: str, place: Mapping[str, str], body: bytes) -> MaskedUpdate:
    """Decodes the masked vector of a body.

    Raises PrivacyError for an unmasked update and for undeclared tensors.
    """
    try:
        found = decode_masked(declaration.with_tensors(tensor_names(body) - {SCALARS}), body)
    except ProtocolError:  # its words may quote names that nobody declared
        raise PrivacyError(
            "expected a masked vector of the declared tensors and the visible scalars, got another body"
        ) from None
    _require_own(found.header, client, place)
    return found


def _require_own(message: ClientMessage, client: str, place: Mapping[str, str]) -> None:
    if (message.client, message.run, str(message.round)) != (client, place["run"], place["round"]):
        raise PrivacyError("expected this client's own name and the round of the path in a message, got others")


def _concerned_clients(message: ClientMessage) -> dict[str, list[str]]:
    """Lists the clients that a message concerns, by what it holds of them."""
    match message:
        case SealedShares():
            return {"sealed for": sorted(message.shares)}
        case ShareCheck():
            return {"complains of": sorted(message.complaints)}
        case Consent():
            return {"survivors": list(message.survivors), "dropped": list(message.dropped)}
        case UnmaskAnswer():
            return {"seeds of": sorted(message.seeds), "mask keys of": sorted(message.keys)}
        case _:
            return {}
