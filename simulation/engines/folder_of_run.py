"""A command and the folder of its run -> a new run, or one that goes on because the very same command began it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from client_service.data.files import replace_file
from shared.errors import SettingsError
from simulation.source import SUMMARY, Cut, CutData, Shards, find_or_cut_shards, find_shards

COMMAND = "command.json"


def open_run_folder(folder: Path, command: Mapping[str, Any]) -> None:
    """Note the command in the folder. SettingsError where something else is there, or was begun by another command."""
    path, said = folder / COMMAND, json.loads(json.dumps(command))
    if not path.exists():
        if any(folder.iterdir()):
            raise SettingsError(f"--out: expected a new or an empty folder, or one to go on in, got {folder}")
        return replace_file(path, json.dumps(said, indent=1).encode())
    kept = json.loads(path.read_text(encoding="utf-8"))
    if other := sorted(name for name in said.keys() | kept.keys() if said.get(name) != kept.get(name)):
        raise SettingsError(f"--out: expected the command that {folder} was begun with, got another {other[0]}")
    return None


def find_or_cut_again(data: str, cut: Cut, folder: Path, cut_anew: CutData | None = None) -> Shards:
    """The shards of the folder where an earlier process has cut all of them, else as `find_or_cut_shards`."""
    found = find_shards(folder) if (folder / SUMMARY).exists() else None
    return find_or_cut_shards(data, cut, folder, cut_anew) if found is None else found


def command_words(data: str, cut: Cut, **settings: Any) -> dict[str, Any]:
    """What decides the outcome of a command, in JSON's own types."""
    return {"data": data, **asdict(cut), **settings}
