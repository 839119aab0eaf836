"""Writes invitations of silos on the operator's machine, also before the aggregator runs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from aggregator_service.settings import AggregatorSettings
from shared.files import PRIVATE, replace_file
from shared.protocol.signing.enrolment import ensure_key_pair
from shared.protocol.signing.invitation import (
    Invitation,
    InvitationOut,
)
from shared.protocol.signing.keys import raw_hex, read_private
from shared.protocol.signing.silo_registry import SiloRegistry, folder_registry
from shared.web.address import require_url, write_address

DAYS = 7.0


def write_invitations(
    settings: AggregatorSettings, names: Collection[str], url: str | None, folder: Path, authority: str | None = None
) -> list[Path]:
    """Writes one invitation per silo and returns their paths.

    url: of the aggregator, as the silos call it; None: this machine's own. authority: PEM of the authority that has
    signed its certificate. Raises ConflictError for a name that has a key already, and SettingsError for an invalid
    name; then no silo is invited.
    """
    if not names:
        return []
    address = url or write_address(settings.host, settings.port, tls=settings.tls_certificate is not None)
    with _open_registry(settings) as registry:
        for name in names:
            registry.require_without_key(name)
        key = read_private(settings.signing_key_file or ensure_key_pair("aggregator", settings.state_directory).private)
        codes = {name: registry.open_invitation(name, DAYS) for name in names}
        members = registry.known_names(datetime.now(UTC)) if settings.secure else ()
    return [
        write_invitation(
            make_invitation(
                name,
                address,
                InvitationOut(
                    code=code,
                    expires=expires,
                    aggregator=raw_hex(key.public_key()),
                    federation=settings.describe_federation(),
                    members=members,
                    items=settings.items,
                ),
                authority,
            ),
            folder,
        )
        for name, (code, expires) in codes.items()
    ]


@contextmanager
def _open_registry(settings: AggregatorSettings) -> Iterator[SiloRegistry]:
    """Opens the registry of silos as the aggregator itself does.

    With a database on a server its rows count, so that one aggregator alone must not run yet.
    """
    if (url := settings.database_url()) is None:
        yield folder_registry(settings.registry)
        return
    from aggregator_service.registrar import Registrar
    from aggregator_service.storage.database import Database

    shared = settings.shared or settings.workers > 1
    with closing(Database(settings.state_directory, settings.declaration(), url, shared=shared)) as database:
        yield Registrar(database, settings.registry).registry


def make_invitation(name: str, url: str, answer: InvitationOut, authority: str | None) -> Invitation:
    """Makes one silo's invitation from the aggregator's answer.

    Raises SettingsError for an invalid address.
    """
    return Invitation(name=name, url=require_url(url), authority=authority, **dict(answer))


def write_invitation(invitation: Invitation, folder: Path) -> Path:
    """Writes an invitation to a private file, and replaces an earlier one."""
    path = folder / f"{invitation.name}.invite"
    replace_file(path, (invitation.model_dump_json(indent=1) + "\n").encode(), PRIVATE)
    return path
