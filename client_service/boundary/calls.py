"""All calls that a client ever makes, each as it may be written, and how long its answer may be."""

from __future__ import annotations

import re
from dataclasses import dataclass

from client_service.boundary.masked import MESSAGES, RELAYED
from shared.method.declaration import Declaration
from shared.protocol.forms import declare_answer
from shared.protocol.heads import NUMBER
from shared.protocol.lengths import longest_relayed, longest_update
from shared.protocol.secure.fixed_point import MOST_CLIENTS

SHORT = 64 << 10  # a receipt, where the federation stands, a problem document
ANCHOR = 256 << 10  # 4,096 numbers
PARAMETERS = ("model", "personalized")


@dataclass(frozen=True)
class Call:
    """One kind of declared call: its name, method, path, and the query as it may be written."""

    name: str
    method: str
    path: re.Pattern[str]
    query: re.Pattern[str] = re.compile("")


def declared_calls(client: str, *, secure: bool = False) -> tuple[Call, ...]:
    """All that this client ever asks of the aggregator; in a secure federation also what the masks need."""
    run, number = r"/v1/runs/(?P<run>run-[0-9]{1,9})", r"/rounds/(?P<round>[0-9]{1,9})"
    own = f"{run}{number}/clients/{re.escape(client)}"
    always = (
        Call("join", "POST", re.compile(r"/v1/clients")),
        Call("current", "GET", re.compile(r"/v1/runs/current"), re.compile(f"wait={NUMBER}(?:&after={NUMBER})?")),
        Call("model", "GET", re.compile(f"{run}/model")),
        Call("anchor", "GET", re.compile(f"{run}{number}/anchor")),
        Call("update", "PUT", re.compile(f"{own}/update")),
        Call("personalized", "GET", re.compile(f"{own}/personalized"), re.compile(f"wait={NUMBER}")),
    )
    if not secure:
        return always
    waiting = re.compile(f"wait={NUMBER}")
    said = (Call(name, "PUT", re.compile(f"{own}/{name}")) for name in MESSAGES)
    asked = (Call(name, "GET", re.compile(f"{own}/{name}"), waiting) for name in RELAYED)
    return (*always, *said, *asked)


def longest_answer(call: str, declaration: Declaration) -> int:
    """Bytes, whatever the answer's status: an aggregator that says more is not listened to."""
    if call in PARAMETERS:
        return max(longest_update(declare_answer(part)) for part in declaration.parts)
    if call in RELAYED:
        return max(longest_relayed(part, MOST_CLIENTS) for part in declaration.parts)
    return ANCHOR if call == "anchor" else SHORT
