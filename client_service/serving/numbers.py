"""Names of models -> each is given once, for good: what is beside a run and its round comes from one counter.

A refresh gives its model the next number. A run goes on after a refresh, on another shard: its rounds may have had
models by the same name before, so that from then on they bear the number too.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from client_service.shard.files import replace_file
from shared.message import Message

NAME = "numbers.json"


class GivenNumbers(Message):
    """The last number that was given. run: that was begun last, when `before` was the last number."""

    last: int = 0
    run: str = ""
    before: int = 0


def next_number(folder: Path) -> int:
    """A number that none has had before, from 1 on. It is given once this returns."""
    given = _read(folder)
    _write(folder, given.model_copy(update={"last": given.last + 1}))
    return given.last + 1


def number_of_run(folder: Path, run: str) -> int:
    """What the models of a run that begins or goes on now bear; 0, nothing, until a number is given meanwhile."""
    given = _read(folder)
    if given.run != run:
        given = given.model_copy(update={"run": run, "before": given.last})
        _write(folder, given)
    return given.last if given.last > given.before else 0


def _read(folder: Path) -> GivenNumbers:
    try:
        return GivenNumbers.model_validate_json((folder / NAME).read_bytes())
    except (FileNotFoundError, ValidationError):
        return GivenNumbers()


def _write(folder: Path, given: GivenNumbers) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / NAME, given.model_dump_json().encode())
