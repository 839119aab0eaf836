"""A declared call -> how long its answer may be: an aggregator that says more is not listened to."""

from __future__ import annotations

from client_service.boundary.masked import RELAYED
from shared.method.declaration import Declaration
from shared.protocol.forms import declare_answer
from shared.protocol.lengths import longest_update
from shared.protocol.secure.fixed_point import MOST_CLIENTS
from shared.protocol.secure_lengths import longest_relayed

SHORT = 64 << 10  # a receipt, where the federation stands, a problem document
ANCHOR = 256 << 10  # 4,096 numbers
PARAMETERS = ("model", "personalized")


def longest_answer(call: str, declaration: Declaration) -> int:
    """Bytes, whatever the answer's status."""
    if call in PARAMETERS:
        return longest_update(declare_answer(declaration))
    if call in RELAYED:
        return longest_relayed(declaration, MOST_CLIENTS)
    return ANCHOR if call == "anchor" else SHORT
