"""Clips, noises and charges a silo's updates: one account, one secret, one release a round."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from client_service.boundary.ledger_heads import LedgerHeads
from client_service.privacy.accounting import FOLDER, Account, Charge, PrivacyOut, silo_secret
from client_service.privacy.mechanism import Noise, Release, privatise
from client_service.privacy.settings import SCALARS, TENSORS, PrivacySettings
from client_service.runtime.logs import LOGGER
from shared.errors import PrivacyError, SettingsError
from shared.files import save_arrays
from shared.message import Message
from shared.method.declaration import Declaration
from shared.method.graph import Float64
from shared.method.parameters import Arrays, Parameters, digest_arrays
from shared.method.settings import MethodSettings
from shared.method.tensors import clamp_scalars
from shared.protocol.wire import encode_body
from shared.strategies import build_strategy

NAME = "release.safetensors"
PURPOSE = "release"  # of the MAC


class ReleaseHead(Message):
    """Metadata of a kept release, without its arrays."""

    occasion: str
    scalars: dict[str, float]
    charges: dict[str, Charge]
    mac: str = ""

    def content(self, arrays: Arrays) -> bytes:
        """Returns the bytes under the MAC, which cover the whole file."""
        return f"{self.model_dump_json(exclude={'mac'})}\n{digest_arrays(arrays)}".encode()


def save_release(folder: Path, heads: LedgerHeads, occasion: str, release: Release) -> None:
    """Replaces the kept release; it is durable when this returns."""
    parameters = release.parameters
    head = ReleaseHead(occasion=occasion, scalars=dict(parameters.scalars), charges=dict(release.charges))
    arrays = {name: np.asarray(value, order="C") for name, value in parameters.arrays.items()}
    head = head.model_copy(update={"mac": heads.mac(PURPOSE, head.content(arrays))})
    save_arrays(folder / NAME, arrays, {"head": head.model_dump_json()})


def load_release(folder: Path, heads: LedgerHeads, occasion: str) -> Release | None:
    """Loads the kept release if it was drawn for this occasion.

    None for one that is damaged, or not of this silo.
    """
    try:
        with safe_open(folder / NAME, framework="numpy") as file:
            head = ReleaseHead.model_validate_json((file.metadata() or {})["head"])
            if head.occasion != occasion:
                return None
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        return None
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        LOGGER.warning("kept_release_refused", reason=f"expected a complete file, got {type(error).__name__}")
        return None
    if not heads.has_mac(PURPOSE, head.content(arrays), head.mac):
        LOGGER.warning("kept_release_refused", reason="expected the MAC of this silo's key, got another")
        return None
    return Release(Parameters(arrays, head.scalars), head.charges)


@dataclass(frozen=True)
class Occasion:
    """Round that a release is drawn for, as far as the aggregator determines it.

    All that the aggregator may repeat or change is part of its name. anchor: K^R, where the strategy compares
    spectra. signal: see `MethodSettings.signal`.
    """

    run: str
    seed: int
    method: MethodSettings
    round: int
    rounds: int
    received: Parameters
    anchor: Float64 | None = None

    def name(self, shard: str) -> str:
        received = [digest_arrays(self.received.arrays), sorted(self.received.scalars.items())]
        place = [self.run, self.seed, self.method.model_dump_json(), self.round, self.rounds]
        return _file_name("round", shard, *place, *received, self._anchor_digest())

    def name_steady_scalar(self, scalar: str, shard: str) -> str:
        """Returns the name of a steady scalar: the same in all rounds with this anchor."""
        return _file_name(scalar, shard, self._anchor_digest(), self.method.cutoff)

    def _anchor_digest(self) -> str:
        return "" if self.anchor is None else hashlib.sha256(np.ascontiguousarray(self.anchor, "<f8").data).hexdigest()


class Guard:
    """Guard of updates: lets only the noised release of each update leave.

    `spending` may be read at any time.
    """

    def __init__(self, settings: PrivacySettings, heads: LedgerHeads, shard: str, declaration: Declaration) -> None:
        """Opens account and secret.

        heads: of the silo's state directory. shard: its digest. declaration: the silo's own.

        Raises DataError for a damaged account or secret, SettingsError if these settings cannot tell what was
        spent.
        """
        self._folder, self._heads = heads.state_directory / FOLDER, heads
        self._folder.mkdir(parents=True, exist_ok=True)
        self._settings, self._shard, self._declaration = settings, shard, declaration
        self._account, self._secret = Account(heads, shard), silo_secret(heads)
        if math.isinf(self._account.epsilon(settings.delta)):
            raise SettingsError(
                "privacy.mechanism: expected gaussian, because this silo has spent on it before: that needs a delta"
            )
        self._leaving, self._refused = "", False
        self.spending = self._compute_spending()

    def switch_shard(self, shard: str) -> None:
        """Switches to another shard, by its digest; the account stays."""
        self._shard = shard
        self._account.switch_shard(shard)

    def release(self, update: Parameters, occasion: Occasion) -> Parameters | None:
        """Draws the release of a round; None if the budget does not allow it.

        It is on disk first, then charged, then returned: after a crash it is the same release, charged once.
        """
        name = occasion.name(self._shard)
        release = load_release(self._folder, self._heads, name)
        if release is None or name not in self._account.spent.occasions:
            release = release or self._draw_release(update, occasion, name)
            if not self._charge(release, occasion, name):
                return None
        self._leaving = hashlib.sha256(encode_body(release.parameters)).hexdigest()
        return release.parameters

    def permit(self, body_digest: str | None) -> dict[str, Any]:
        """Returns the ledger's note on an update that is about to leave.

        Raises PrivacyError for an update that is no release. body_digest: None for a masked update, whose content
        cannot be compared; then a release must at least exist.
        """
        if body_digest != self._leaving if body_digest else not self._leaving:
            raise PrivacyError("expected the release of this round's update, clipped and noised, got another body")
        return {**self.spending.model_dump(exclude={"exhausted"}, exclude_none=True), "account": self._account.end}

    def _draw_release(self, update: Parameters, occasion: Occasion, name: str) -> Release:
        known = self._account.spent.kept
        kept = {name: known[key] for name, key in self._map_steady_scalars(occasion).items() if key in known}
        again = self._account.spent.occasions[name]  # a release that is gone is drawn and charged anew
        noise = Noise(self._secret, f"{name}/{again}")
        received, declared = occasion.received.arrays, self._declaration.scalars
        drawn = privatise(received, update, declared, self._settings, noise, kept)
        ranges = build_strategy(self._declaration.strategy, occasion.method).ranges  # beyond it nobody takes a scalar
        scalars = clamp_scalars(ranges, drawn.parameters.scalars)
        return Release(Parameters(drawn.parameters.arrays, scalars), drawn.charges)

    def _charge(self, release: Release, occasion: Occasion, name: str) -> bool:
        """Charges a release, and returns whether the budget allows it."""
        charges, steady = release.charges, self._map_steady_scalars(occasion)
        after = self._account.epsilon(self._settings.delta, charges.values())
        self._refused = after > self.spending.budget
        if not self._refused:
            kept = {key: release.parameters.scalars[name] for name, key in steady.items() if name in charges}
            save_release(self._folder, self._heads, name, release)
            self._account.charge(name, charges, kept, run=occasion.run, round=occasion.round, epsilon=after)
        self.spending = self._compute_spending()
        return not self._refused

    def _map_steady_scalars(self, occasion: Occasion) -> dict[str, str]:
        """Maps each steady scalar to the name of what it follows from: shard and anchor."""
        if occasion.anchor is None:
            return {}
        scalars = build_strategy(self._declaration.strategy, occasion.method).scalars
        return {n: occasion.name_steady_scalar(n, self._shard) for n, scalar in scalars.items() if scalar.steady}

    def _compute_spending(self) -> PrivacyOut:
        """Computes the spent epsilon and the budget.

        The budget is exhausted when it has no room for a further round whose steady scalars are known.
        """
        settings, account = self._settings, self._account
        assert settings.mechanism != "off" and settings.budget is not None
        parts = [TENSORS, *(name for name in self._declaration.scalars if not SCALARS[name].steady)]
        following = account.epsilon(settings.delta, [Charge(*settings.noise(part)) for part in parts])
        return PrivacyOut(
            mechanism=settings.mechanism,
            epsilon=account.epsilon(settings.delta),
            delta=settings.delta,
            budget=settings.budget,
            exhausted=self._refused or following > settings.budget,
        )


def notices(spending: PrivacyOut | None) -> tuple[str, ...]:
    """Returns a warning when the privacy budget is spent."""
    if spending is None or not spending.exhausted:
        return ()
    return (
        f"the privacy budget of this silo is spent: epsilon {spending.epsilon:.3g} of {spending.budget:.3g}; no update"
        " leaves any more, while parameters are still received and recommendations answered; a larger budget, chosen by"
        " the silo, would let it send again",
    )


def _file_name(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
