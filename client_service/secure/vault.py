"""The secrets of one secure round <-> one file for its owner alone, durable before anything made of them leaves."""

from __future__ import annotations

from pathlib import Path

from client_service.logs import LOGGER
from shared.errors import DataError
from shared.new_files import PRIVATE, replace_file
from shared.protocol.secure.state import State, read, state_json, terms_of

NAME = "secure_round.json"


class Vault:
    """What this client knows of the round at hand, and nothing of any round before."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def keep(self, state: State) -> None:
        """Replace what is kept. Durable when this returns."""
        replace_file(self._path, state_json(state).encode(), PRIVATE)

    def stored_state(self, run: str, number: int) -> State | None:
        """Where an earlier process was in this round; None where there is nothing fit of it."""
        try:
            state = read(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (DataError, UnicodeDecodeError):
            LOGGER.warning("secure_round_refused", reason="expected a whole state of a secure round, got another file")
            return None
        terms = terms_of(state)
        return state if (terms.run, terms.round) == (run, number) else None

    def forget(self) -> None:
        """The round is over, for this client at least. That it took part in it stays in its `RoundMemory`."""
        for path in (self._path, self._path.with_name(f"{NAME}.partial")):
            path.unlink(missing_ok=True)
