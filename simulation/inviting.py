"""The operator's machine -> invitations of silos, before or while the aggregator runs there."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from aggregator_service.settings import AggregatorSettings
from shared.new_files import PRIVATE, replace_file
from shared.protocol.signing.enrolment import kept_pair
from shared.protocol.signing.invitation import Invitation, open_invitation, require_without_key
from shared.protocol.signing.keys import raw_hex, read_private
from shared.web.address import require_url

DAYS = 7.0


def write_invitations(
    settings: AggregatorSettings, names: Collection[str], url: str | None, folder: Path
) -> list[Path]:
    """One file a silo. `url`: of the aggregator, as the silos call it; None: this machine's own.

    ConflictError for a name that has a key already, SettingsError for what is no client's name: then nobody is invited.
    """
    for name in names:
        require_without_key(name, settings.registry)
    address = require_url(url or f"http://127.0.0.1:{settings.port}")
    return [write_invitation(_invitation(settings, name, address), folder) for name in names]


def write_invitation(invitation: Invitation, folder: Path) -> Path:
    """In a file that its user alone may read; one for the same name is replaced."""
    path = folder / f"{invitation.name}.invite"
    replace_file(path, (invitation.model_dump_json(indent=1) + "\n").encode(), PRIVATE)
    return path


def _invitation(settings: AggregatorSettings, name: str, url: str) -> Invitation:
    code, expires = open_invitation(name, settings.registry, DAYS)
    key = read_private(settings.signing_key_file or kept_pair("aggregator", settings.state_directory).private)
    return Invitation(name=name, url=url, code=code, expires=expires, aggregator=raw_hex(key.public_key()))
