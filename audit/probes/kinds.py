"""Kinds of probes that a part's evidence must have.

A kind that is missing has shown nothing. A new kind of probe is added here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from audit.evidence.evidence import Role
from audit.probes import confinement, containers, contents, gate, own_gate, sockets, uploads

OUTSIDE = ("outside by TCP", "outside by UDP", "outside by DNS")
FILES = ("files",)
ALWAYS: Mapping[Role, tuple[str, ...]] = {
    "client": (
        *OUTSIDE,
        *FILES,
        "control: its own files",
        "control: the aggregator",
        uploads.KIND,
        gate.KIND,
        own_gate.GATE,
        own_gate.WORD,
    ),
    "aggregator": (*OUTSIDE, *FILES),
    "gateway": OUTSIDE,
}
"""Kinds that every part of that role must have tried, in every deployment."""
SEEN = "control: the part's own files"  # kind of probes that see the processes of their part
GROUPS = (
    (containers.KIND, contents.KIND, sockets.KIND, confinement.KIND),  # probes of a container
    (SEEN,),
)
"""Kinds that every part must have tried, once any part has tried one of the group: all parts then run alike."""


def expected_kinds(role: Role, tried_kinds: Collection[str]) -> tuple[str, ...]:
    """Lists the kinds of probes that a part of this role must have tried.

    tried_kinds: kinds that any part has tried.
    """
    more = [kind for group in GROUPS if not set(group).isdisjoint(tried_kinds) for kind in (*group, *FILES)]
    code = [own_gate.CODE] if role == "client" and SEEN in tried_kinds else []
    return tuple(dict.fromkeys((*ALWAYS[role], *more, *code)))
