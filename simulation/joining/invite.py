"""The operator's machine -> invitations of silos, before or while the aggregator runs there."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

from aggregator_service.settings import AggregatorSettings
from shared.files import PRIVATE, replace_file
from shared.protocol.signing.enrolment import kept_pair
from shared.protocol.signing.invitation import (
    Invitation,
    InvitationOut,
    known_names,
    open_invitation,
    require_without_key,
)
from shared.protocol.signing.keys import raw_hex, read_private
from shared.web.address import require_url, write_address

DAYS = 7.0


def write_invitations(
    settings: AggregatorSettings, names: Collection[str], url: str | None, folder: Path, authority: str | None = None
) -> list[Path]:
    """One file a silo. `url`: of the aggregator, as the silos call it; None: this machine's own. `authority`: PEM of
    who has signed its certificate.

    ConflictError for a name that has a key already, SettingsError for what is no client's name: then nobody is invited.
    """
    for name in names:
        require_without_key(name, settings.registry)
    address = url or write_address(settings.host, settings.port, tls=settings.tls_certificate is not None)
    key = read_private(settings.signing_key_file or kept_pair("aggregator", settings.state_directory).private)
    codes = {name: open_invitation(name, settings.registry, DAYS) for name in names}
    members = known_names(settings.registry, datetime.now(UTC)) if settings.secure else ()
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


def make_invitation(name: str, url: str, told: InvitationOut, authority: str | None) -> Invitation:
    """What the aggregator has said, for one silo. SettingsError for an address that nobody can be called by."""
    return Invitation(name=name, url=require_url(url), authority=authority, **dict(told))


def write_invitation(invitation: Invitation, folder: Path) -> Path:
    """In a file that its user alone may read; one for the same name is replaced."""
    path = folder / f"{invitation.name}.invite"
    replace_file(path, (invitation.model_dump_json(indent=1) + "\n").encode(), PRIVATE)
    return path
