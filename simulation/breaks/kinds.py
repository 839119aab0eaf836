"""Each kind of break: what is done to the running federation, and by what names the report must call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulation.breaks.planted_header import HEADER, SOURCE

# What an engine leaves to a root user who drops nothing.
DEFAULT_RIGHTS = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
ENGINE_SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True)
class Errand:
    """A few lines of shell beside some volumes: name -> place."""

    volumes: Mapping[str, str]
    script: str
    said: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Break:
    """`services`: what an override of the compose file says of them; `before`, `after`: errands before the containers
    change, and after the probes; `named`: what must stand in the faults of the report, each in at least one."""

    does: str
    named: tuple[str, ...]
    services: Mapping[str, Any] = field(default_factory=dict)
    before: Errand | None = None
    after: Errand | None = None


BREAKS: dict[str, Break] = {
    "key": Break(
        "client-1's private key is mounted into the aggregator",
        ("aggregator, mounts, places: also /spare", "aggregator, contents, private key: 1 at /spare"),
        services={"aggregator": {"volumes": ["secret-1:/spare:ro"]}},
    ),
    "header": Break(
        f"client-2's code is changed: 6,000 characters of its interactions in the header {HEADER} of each request",
        (f"client-2, {HEADER}", "client-2, its code, by its files, its environment: other than here: PYTHONPATH"),
        services={"client-2": {"environment": {"PYTHONPATH": "/state/changed:/opt/code"}}},
        before=Errand(
            {"state-2": "/state"},
            'mkdir -p /state/changed && printf %s "$CODE" > /state/changed/sitecustomize.py',
            {"CODE": SOURCE},
        ),
    ),
    "root": Break(
        "client-4's gateway runs as root, with default rights, a root it can write and the engine's socket as /spare",
        (
            "gateway-4, confinement, user: uid 0",
            "gateway-4, confinement, capabilities: Cap",
            "gateway-4, confinement, root file system: writable",
            "gateway-4, mounts, places: also /spare",
            "gateway-4, sockets, of UNIX: 1: /spare",
        ),
        services={
            "gateway-4": {
                "user": "0:0",
                "read_only": False,
                "cap_add": [*DEFAULT_RIGHTS],
                "volumes": [f"{ENGINE_SOCKET}:/spare"],
            }
        },
    ),
    "shard": Break(
        "client-1's shard lies as train.parquet in the aggregator's own volume",
        ("aggregator, contents, Parquet: 1 at /state",),
        before=Errand(
            {"shard-1": "/shard:ro", "state-aggregator": "/state"},
            "cp /shard/interactions.parquet /state/train.parquet",
        ),
    ),
    "evidence": Break(
        "client-3's evidence is gone",
        ("client-3: no evidence",),
        after=Errand({"evidence-3": "/evidence"}, "rm /evidence/client-3.json"),
    ),
}
