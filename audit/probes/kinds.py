"""Which kinds of probes a part's evidence must have: one that is not there has shown nothing.

Whoever adds a kind of probe adds it here.
"""

from __future__ import annotations

from collections.abc import Mapping

from audit.evidence import Role
from audit.probes import confinement, contents, gate, mounts, sockets, uploads

OUTSIDE = ("outside by TCP", "outside by UDP", "outside by DNS")
FILES = ("files",)
ALWAYS: Mapping[Role, tuple[str, ...]] = {
    "client": (*OUTSIDE, *FILES, "control: its own files", "control: the aggregator", uploads.KIND, gate.KIND),
    "aggregator": (*OUTSIDE, *FILES),
    "gateway": OUTSIDE,
}
"""By every part of that role, wherever it runs."""
CONTAINED = ("control: the part's own files", mounts.KIND, contents.KIND, sockets.KIND, confinement.KIND)
"""By every part as soon as one part has tried any of them: then all of them run in containers."""


def expected(role: Role, *, contained: bool) -> tuple[str, ...]:
    """All kinds that a part of this role must have tried."""
    more = (*CONTAINED, *FILES) if contained else ()
    return tuple(dict.fromkeys((*ALWAYS[role], *more)))
