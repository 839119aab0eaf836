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
"""By every part of that role, wherever it runs."""
SEEN = "control: the part's own files"  # of probes that stand among the processes of their part
GROUPS = (
    (containers.KIND, contents.KIND, sockets.KIND, confinement.KIND),  # of containers
    (SEEN,),
)
"""By every part as soon as one part has tried any of a group: then all of them run so."""


def expected_kinds(role: Role, anybody_s: Collection[str]) -> tuple[str, ...]:
    """Lists the kinds of probes that a part of this role must have tried.

    anybody_s: kinds that any part has tried.
    """
    more = [kind for group in GROUPS if not set(group).isdisjoint(anybody_s) for kind in (*group, *FILES)]
    code = [own_gate.CODE] if role == "client" and SEEN in anybody_s else []
    return tuple(dict.fromkeys((*ALWAYS[role], *more, *code)))
