"""Files of one secure round: its secrets, and the start it reports against."""

from __future__ import annotations

from pathlib import Path

from client_service.runtime.logs import LOGGER
from shared.errors import DataError, PrivacyError
from shared.files import PRIVATE, replace_file
from shared.method.parameters import Parameters
from shared.protocol.secure.common import digest_start
from shared.protocol.secure.state import State, read, state_json, terms_of
from shared.protocol.wire import encode, open_parameters

NAME = "secure_round.json"


class RoundSecrets:
    """What this client knows of the round at hand, and nothing of any round before."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME

    def save(self, state: State) -> None:
        """Replace what is kept. Durable when this returns."""
        replace_file(self._path, state_json(state).encode(), PRIVATE)

    def load(self, run: str, number: int) -> State | None:
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

    def delete(self) -> None:
        """The round is over, for this client at least. That it took part in it stays in its `RoundMemory`."""
        self._path.unlink(missing_ok=True)


def save_start(folder: Path, number: int, given: Parameters) -> None:
    """Round `number` begins with these. Durable when this returns; the file of round `number` - 2 is replaced."""
    replace_file(_path(folder, number), encode(given), PRIVATE)


def load_start(folder: Path, number: int, digest: str) -> Parameters:
    """What round `number` began with. PrivacyError unless it has this digest: another base is another report."""
    path = _path(folder, number)
    found = open_parameters(path)[1] if path.is_file() else None
    if found is None or digest_start(found) != digest:
        raise PrivacyError(f"{path.name}: expected what round {number} began with, got another content or none")
    return found


def _path(folder: Path, number: int) -> Path:
    return folder / f"secure_start_{number % 2}.safetensors"
