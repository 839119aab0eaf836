"""The release at hand <-> one file, replaced whole: a round that is lived again sends the very same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from client_service.logs import LOGGER
from client_service.privacy.accountant import Charge
from client_service.privacy.mechanism import Release
from client_service.shard.files import settle
from shared.strategy import Parameters

NAME = "release.safetensors"


class Head(BaseModel):
    """All of a release that is no array, and the occasion that it was drawn for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    occasion: str
    scalars: dict[str, float]
    charges: dict[str, Charge]


def keep_release(folder: Path, occasion: str, release: Release) -> None:
    """Replace the kept release. It is durable when this returns."""
    parameters = release.parameters
    head = Head(occasion=occasion, scalars=dict(parameters.scalars), charges=dict(release.charges))
    partial = folder / f"{NAME}.partial"
    arrays = {name: np.asarray(value, order="C") for name, value in parameters.arrays.items()}
    save_file(arrays, partial, metadata={"head": head.model_dump_json()})
    settle(partial, folder / NAME)


def kept_release(folder: Path, occasion: str) -> Release | None:
    """The kept release, if it was drawn for this occasion. One that cannot be read is as none: it is drawn anew."""
    try:
        with safe_open(folder / NAME, framework="numpy") as file:
            head = Head.model_validate_json((file.metadata() or {})["head"])
            if head.occasion != occasion:
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        LOGGER.warning("kept_release_refused", reason=f"expected a whole one, got {type(error).__name__}")
        return None
    return Release(Parameters(arrays, head.scalars), head.charges)
