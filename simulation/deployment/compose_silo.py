"""Compose file of one silo whose aggregator is elsewhere."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shared.errors import SettingsError
from shared.files import PRIVATE, replace_file
from shared.web.address import require_https

if TYPE_CHECKING:
    from shared.protocol.signing.invitation import Invitation

TEMPLATE = "docker-compose.silo.yml"
SUBNET = "10.202.0.0/28"  # of the client, the exit and, once, `join`
MOUNTED_CATALOGUE = "/list/catalogue.txt"  # in the container that joins; it keeps a copy in the silo's folder
DEFAULT_PORTS = {"http": 80, "https": 443}
FORBIDDEN_CHARACTERS = set(":$\\\"'#{}[],&*\n")  # what YAML or Compose read as something else in a path
IMAGE_USER = (10001, 10001)


@dataclass(frozen=True)
class SiloCompose:
    """Values of one silo's Compose file.

    folder: for keys, shard and state, on this machine. data: the silo's own interactions. owner: (user, group) of the
    containers, which owns the folder. port: of this machine's loopback, for the silo's applications. policy:
    key=value, as in `lpsfed join`. allow_http: the way to the aggregator is trusted. catalogue: the list of items
    that all silos share.
    """

    folder: Path
    data: Path
    owner: tuple[int, int]
    port: int = 8801
    min_rating: float | None = None
    policy: tuple[str, ...] = ()
    allow_http: bool = False
    subnet: str = SUBNET
    catalogue: Path | None = None


def choose_owner() -> tuple[int, int]:
    """Returns the calling user, or the images' own user in place of root."""
    return (os.getuid(), os.getgid()) if os.getuid() else IMAGE_USER


def compose_silo(silo: SiloCompose, invitation: Invitation, out: Path = Path(TEMPLATE)) -> str:
    """Renders the file.

    Raises SettingsError for data that containers cannot read, and for a path that cannot be mounted.
    """
    from simulation.deployment.files import render_template

    _require_readable(silo.data, silo.owner, "--data: expected the silo's own interactions")
    if silo.catalogue is not None:
        _require_readable(silo.catalogue, silo.owner, "--catalogue: expected the list of items that all silos share")
    secure = invitation.federation is not None and invitation.federation.secure
    require_https(invitation.url, allow_http=silo.allow_http, secure=secure)
    return render_template(TEMPLATE, _template_values(silo, invitation, out))


def write_compose_silo(silo: SiloCompose, invitation: Invitation, out: Path) -> Path:
    """Writes the file, and the invitation into the silo's folder. Returns the file's path."""
    from simulation.deployment.files import write_files

    text = compose_silo(silo, invitation, out)
    silo.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    inner = silo.folder / "invitation"
    replace_file(inner, invitation.model_dump_json().encode(), PRIVATE)
    if os.getuid() == 0:
        for path in (silo.folder, inner):
            os.chown(path, *silo.owner)
    write_files({out: text})
    return out


def _template_values(silo: SiloCompose, invitation: Invitation, out: Path) -> dict[str, Any]:
    from simulation.deployment.files import SUBNET_PREFIX, assign_subnets

    address, data = urlsplit(invitation.url), _require_mountable(silo.data)
    (subnet,) = assign_subnets(["link"], silo.subnet).values()
    return {
        "file": out.name,
        "host": address.hostname,
        "port": address.port or DEFAULT_PORTS[address.scheme],
        "bound": f"127.0.0.1:{silo.port}",
        "folder": _require_mountable(silo.folder),
        "user": ":".join(map(str, silo.owner)),
        "data": data,
        "data_name": data.name,
        "catalogue": None if silo.catalogue is None else _require_mountable(silo.catalogue),
        "flags": "".join(f", {json.dumps(word)}" for word in _join_flags(silo)),
        "subnet": subnet,
        "exit": subnet[(1 << (32 - SUBNET_PREFIX)) - 2],
    }


def _join_flags(silo: SiloCompose) -> list[str]:
    """Returns the options of `lpsfed join` other than paths."""
    rating = [] if silo.min_rating is None else ["--min-rating", f"{silo.min_rating:g}"]
    listed = [] if silo.catalogue is None else ["--catalogue", MOUNTED_CATALOGUE]
    policy = [word for one in silo.policy for word in ("--policy", one.replace("$", "$$"))]
    return [*rating, *listed, *policy, *(["--allow-http"] if silo.allow_http else [])]


def _require_mountable(path: Path) -> Path:
    found = path.resolve()
    if wrong := sorted(set(str(found)) & FORBIDDEN_CHARACTERS):
        raise SettingsError(f"{found}: expected a path that a mount can name, got one with {' '.join(wrong)}")
    return found


def _require_readable(path: Path, owner: tuple[int, int], expected: str) -> None:
    try:
        state = path.stat()
    except OSError as error:
        raise SettingsError(f"{expected}, got {path} ({error.strerror})") from None
    mine = (owner[0] == state.st_uid, 0o400), (owner[1] == state.st_gid, 0o040), (True, 0o004)
    readable = next(state.st_mode & bit for holds, bit in mine if holds)
    if not readable:
        raise SettingsError(f"{path}: expected a file that user {owner[0]} of the containers can read")
