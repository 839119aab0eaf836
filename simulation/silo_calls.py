"""A silo's address and a key -> the Python client, whose errors are of this project's tree."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lpsfed import Client, RefusedError, SiloError, UnreachableError
from shared.errors import ConflictError, FederationError, ProtocolError, SettingsError, UnavailableError


@contextmanager
def open_silo(url: str, key: str | None, ca: Path | None) -> Iterator[Client]:
    """SettingsError for an address, a key or an authority of no use; what the silo says, or that it says nothing."""
    try:
        client = Client(url, key, ca=ca)
    except ssl.SSLError:
        raise SettingsError(f"--ca: expected certificates of an authority as PEM, got {ca}") from None
    except OSError as error:
        raise SettingsError(f"--ca: expected a readable file, got {ca} ({error.strerror})") from None
    except ValueError as error:
        raise SettingsError(str(error)) from None
    with client:
        try:
            yield client
        except UnreachableError as error:
            raise UnavailableError(f"{url}: {error}") from None
        except RefusedError as error:
            raise (ConflictError if error.code == ConflictError.code else FederationError)(str(error)) from None
        except SiloError as error:
            raise ProtocolError(f"{url}: {error}") from None
