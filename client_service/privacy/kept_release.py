"""The release at hand <-> one file, replaced whole: a round that is repeated sends the same release.

The file carries a MAC under the silo's key: what it holds leaves as it is, so that nobody else may write it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from client_service.boundary.ledger_heads import LedgerHeads
from client_service.logs import LOGGER
from client_service.privacy.accountant import Charge
from client_service.privacy.mechanism import Release
from client_service.shard.files import settle
from client_service.tensor_files import write_arrays
from shared.message import Message
from shared.method.exchanged import Parameters
from shared.method.parameters import Arrays, digest

NAME = "release.safetensors"
PURPOSE = "release"  # of the MAC


class ReleaseHead(Message):
    """All of a release that is no array, and the occasion that it was drawn for."""

    occasion: str
    scalars: dict[str, float]
    charges: dict[str, Charge]
    mac: str = ""

    def content(self, arrays: Arrays) -> bytes:
        """What is under the MAC: all of the file."""
        return f"{self.model_dump_json(exclude={'mac'})}\n{digest(arrays)}".encode()


def keep_release(folder: Path, heads: LedgerHeads, occasion: str, release: Release) -> None:
    """Replace the kept release. It is durable when this returns."""
    parameters = release.parameters
    head = ReleaseHead(occasion=occasion, scalars=dict(parameters.scalars), charges=dict(release.charges))
    partial = folder / f"{NAME}.partial"
    arrays = {name: np.asarray(value, order="C") for name, value in parameters.arrays.items()}
    head = head.model_copy(update={"mac": heads.mac(PURPOSE, head.content(arrays))})
    write_arrays(partial, arrays, {"head": head.model_dump_json()})
    settle(partial, folder / NAME)


def kept_release(folder: Path, heads: LedgerHeads, occasion: str) -> Release | None:
    """The kept release, if it was drawn for this occasion; None for one that is damaged, or not of this silo."""
    try:
        with safe_open(folder / NAME, framework="numpy") as file:
            head = ReleaseHead.model_validate_json((file.metadata() or {})["head"])
            if head.occasion != occasion:
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        LOGGER.warning("kept_release_refused", reason=f"expected a whole one, got {type(error).__name__}")
        return None
    if not heads.has_mac(PURPOSE, head.content(arrays), head.mac):
        LOGGER.warning("kept_release_refused", reason="expected the MAC that this silo's key makes, got another")
        return None
    return Release(Parameters(arrays, head.scalars), head.charges)
