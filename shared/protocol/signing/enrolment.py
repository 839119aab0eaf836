"""A client's name -> its key pair in two files, and its public key in the folder of those that the aggregator knows.

`<name>.key` is the client's and nobody else's. `<name>.pub` goes to the operator, who puts it into the folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shared.errors import ConflictError, NotFoundError, SettingsError
from shared.new_files import PRIVATE, PUBLIC, write_new
from shared.protocol.schemas import ClientName
from shared.protocol.signing.key_index import KeyIndex, hold_index
from shared.protocol.signing.keys import (
    PrivateKey,
    PublicKey,
    fingerprint,
    new_key,
    private_pem,
    public_pem,
    read_private,
    read_public,
)

NAME: TypeAdapter[str] = TypeAdapter(ClientName)


@dataclass(frozen=True)
class KeyFiles:
    """Where the two halves of a client's key lie."""

    name: str
    private: Path
    public: Path

    @staticmethod
    def of(name: str, folder: Path) -> KeyFiles:
        return KeyFiles(name, folder / f"{name}.key", public_file(name, folder))


def public_file(name: str, folder: Path) -> Path:
    """Where the folder has, or would have, this client's public key."""
    return folder / f"{name}.pub"


def make_pair(name: str, folder: Path) -> KeyFiles:
    """A new pair. ConflictError where there is a private key already: whoever replaced it would lock the client out."""
    pair, key = KeyFiles.of(require_name(name), folder), new_key()
    if not write_new(pair.private, private_pem(key), PRIVATE):
        raise ConflictError(f"{pair.private}: expected no file there, got one; nothing was changed")
    pair.public.unlink(missing_ok=True)  # of a private key that is gone
    write_new(pair.public, public_pem(key.public_key()), PUBLIC)
    return pair


def kept_pair(name: str, folder: Path) -> KeyFiles:
    """The pair that is there, or a new one. A public half that is missing is made anew from the private one."""
    pair = KeyFiles.of(require_name(name), folder)
    if not pair.private.exists():
        return make_pair(name, folder)
    write_new(pair.public, public_pem(read_private(pair.private).public_key()), PUBLIC)
    return pair


def own_key(client: str, state_directory: Path, given: Path | None = None) -> PrivateKey:
    """The key in the file `given`, or in `<client>.key` in the client's state directory.

    SettingsError where there is none, where others may read it, or where it is no such key.
    """
    path = given or KeyFiles.of(client, state_directory).private
    if not path.exists():
        raise SettingsError(f"{path}: expected the private key of {client!r}; `lpsfed keys new {client}` makes one")
    return read_private(path)


def register(public: Path, folder: Path) -> str:
    """Take the key in `<name>.pub` into the folder; the name. The very same key again changes nothing.

    ConflictError where the name has another key, or the key another name.
    """
    name = require_name(public.name.removesuffix(".pub"))
    register_key(name, read_public(public), folder)
    return name


def register_key(name: str, key: PublicKey, folder: Path) -> None:
    """The same for a key at hand."""
    file = public_file(require_name(name), folder)
    if file.exists():
        return _require_same(name, file, key)
    with hold_index(folder, partial(_names_by_mark, folder)) as index:
        if (holder := _find_holder(index, key, folder)) not in (None, name):
            raise ConflictError(f"expected a key of its own for {name!r}, {holder!r} has this one")
        if not write_new(file, public_pem(key), PUBLIC):  # somebody has been faster
            return _require_same(name, file, key)
        index.note(fingerprint(key), name)


def _require_same(name: str, file: Path, key: PublicKey) -> None:
    held = _key_in(file)
    if held is None or fingerprint(held) != fingerprint(key):
        raise ConflictError(f"expected a name without a key, {name!r} has another one: remove it first")


def _find_holder(index: KeyIndex, key: PublicKey, folder: Path) -> str | None:
    """Who has the key; None also where its file was removed or holds another one since."""
    name = index.find_name(mark := fingerprint(key))
    held = _key_in(public_file(name, folder)) if name is not None and _is_name(name) else None
    return name if held is not None and fingerprint(held) == mark else None


def _names_by_mark(folder: Path) -> dict[str, str]:
    return {fingerprint(key): name for name, key in registered_keys(folder).items() if key is not None}


def registered_key(name: str, folder: Path) -> PublicKey | None:
    """The key of one name; None where it has none, or a file that holds none."""
    return _key_in(public_file(require_name(name), folder))


def registered_keys(folder: Path) -> dict[str, PublicKey | None]:
    """The folder's keys by name, sorted; None for a file that holds none."""
    files = sorted(folder.glob("*.pub"))
    return {file.stem: _key_in(file) for file in files if _is_name(file.stem)}


def registered_names(folder: Path) -> frozenset[str]:
    """Who has a file there, read or not: a look at the folder alone."""
    return frozenset(file.stem for file in folder.glob("*.pub") if _is_name(file.stem))


def registered_files(folder: Path) -> list[Path]:
    """The files of the folder's keys, sorted by name. NotFoundError where there are none."""
    files = [public_file(name, folder) for name in registered_keys(folder)]
    if not files:
        raise NotFoundError(f"{folder}: expected public keys, <name>.pub each, got none")
    return files


def remove(name: str, folder: Path) -> None:
    """From now on the client of this name is nobody. NotFoundError where it was nobody before."""
    try:
        public_file(require_name(name), folder).unlink()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"expected a registered name, got {name!r}") from None


def enrol(name: str, own: Path, registry: Path) -> KeyFiles:
    """Both sides at once, for whoever is both: a pair in the client's own folder, registered. What is there stays."""
    pair = kept_pair(name, own)
    register(pair.public, registry)
    return pair


def require_name(name: str) -> str:
    """The name, which may become a file's. SettingsError for what is no client's name."""
    if not _is_name(name):
        raise SettingsError(f"expected a client's name (a-z, 0-9, _ and -, at most 63 of them), got {name!r}")
    return name


def _is_name(name: str) -> bool:
    try:
        NAME.validate_python(name)
    except ValidationError:
        return False
    return True


def _key_in(file: Path) -> PublicKey | None:
    try:
        return read_public(file)
    except SettingsError:
        return None
