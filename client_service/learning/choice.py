"""A shard's choices by validation <-> a file beside its spectrum, so that a run need not make them again."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from client_service.models.fusion import Recipe
from client_service.models.start import Filter
from client_service.shard import Shard
from client_service.shard.files import replace_file
from shared.message import Message

FORMAT = "lpsfed-choice/2"


class Choice(Message):
    """The filter at which training starts, and what is fused with the trained score; None: not chosen yet."""

    format: str = FORMAT
    start: Filter | None = None
    recipe: Recipe | None = None


def kept_choice(shard: Shard, cutoff: int, folder: Path) -> Choice:
    """What an earlier run chose for this very shard and cut-off; nothing where there is no such file."""
    try:
        found = Choice.model_validate_json(_path(shard, cutoff, folder).read_bytes())
    except (OSError, ValidationError):
        return Choice()
    return found if found.format == FORMAT else Choice()


def keep_choice(shard: Shard, cutoff: int, folder: Path, choice: Choice) -> None:
    """Replace what was kept."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(_path(shard, cutoff, folder), choice.model_dump_json(indent=1).encode())


def _path(shard: Shard, cutoff: int, folder: Path) -> Path:
    return folder / f"choice-{shard.digest[:16]}-{cutoff}.json"
