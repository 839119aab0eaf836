"""Secrets of docker-compose.yml: `python -m simulation.deployment.compose_secrets CLIENT...`.

They are made once, each in the folder of the service that may read it, for a federation on one machine with one
owner. Elsewhere each side makes its own: `lpsfed keys`, `lpsfed certificates`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from shared.errors import FederationError
from shared.files import create_secret
from shared.protocol.signing.enrolment import enrol_client, ensure_key_pair, registered_files
from shared.protocol.signing.members import write_registry
from simulation.deployment.certificates import AUTHORITY, development_files, write_files

AGGREGATOR = "aggregator"
DAYS = 3650  # nothing renews it: the authority's key is deleted, so that no further certificate can be signed


def make_secrets(clients: Sequence[str], root: Path = Path("/")) -> None:
    """Makes the operator's token, key pairs, and the aggregator's certificate.

    `keys` and `public` hold what others may know: public keys and the authority's certificate. Existing files are
    kept.
    """
    handed_over, keys, public = root / "handed-over", root / "keys", root / "public"
    create_secret(handed_over / "operator" / "token")
    for name in clients:
        enrol_client(name, handed_over / name, keys)
    write_members(ensure_key_pair(AGGREGATOR, handed_over / AGGREGATOR).public, keys, public / "members.toml")
    make_certificate(handed_over / AGGREGATOR, public)


def write_members(aggregator: Path, keys: Path, members: Path) -> None:
    """Writes the file that every client pins, atomically."""
    write_registry(members, aggregator, registered_files(keys))


def make_certificate(own: Path, public: Path) -> None:
    """Makes the aggregator's certificate, and writes the authority's last: it marks completion."""
    if (public / f"{AUTHORITY}.crt").exists():
        return
    made = development_files((AGGREGATOR,), (), days=DAYS)
    for kind in ("crt", "key"):
        (own / f"tls.{kind}").unlink(missing_ok=True)  # of a start that was cut off
        write_files(own, {f"tls.{kind}": made[f"{AGGREGATOR}.{kind}"]})
    write_files(public, {f"{AUTHORITY}.crt": made[f"{AUTHORITY}.crt"]})


def main(clients: Sequence[str]) -> int:
    try:
        make_secrets(clients)
    except FederationError as error:
        sys.stderr.write(f"secrets: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
