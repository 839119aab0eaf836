"""The anchor that the aggregator says -> the one that this client has drawn by itself; or a refusal.

Each rho tells one number about the silo's spectrum, given the anchor. An aggregator that chose anchors, or that had rho
compared with very many of them, could put the spectrum together from the answers. So anchors follow from public
settings and a seed, and a silo answers for a limited number of different ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from client_service.boundary.ledger import Ledger
from shared.errors import DataError, PrivacyError
from shared.method.anchor import declared_size, draw_anchor, same_kernel
from shared.method.declaration import Counts
from shared.method.graph import Float64
from shared.method.settings import MethodSettings
from shared.protocol.schemas import AnchorOut
from shared.protocol.secure.common import digest_anchor, digest_method

NAME = "anchors.jsonl"  # in the state directory


@dataclass(frozen=True)
class AnchorQuestion:
    """What K^R follows from: the run's settings and seed, and the round. `run`: whose trained kernel it is."""

    method: MethodSettings
    seed: int
    number: int
    run: str = ""


class KnownAnchors:
    """Those that rho of one shard was compared with, over all runs and restarts.

    `limit`: how many different ones the silo's policy allows; None: any number, because rho leaves with noise that is
    accounted for. `agreed`: the size of an anchor whose size follows from counts, as the silos have agreed upon it.
    """

    def __init__(self, ledger: Ledger, shard: str, *, limit: int | None, agreed: Counts | None) -> None:
        """ledger: of anchors alone. shard: its digest. DataError for a damaged file."""
        self._ledger, self._shard = ledger, shard
        self._limit, self._agreed = limit, agreed
        self._ledger.verify()
        try:
            self._known = {entry["anchor"] for entry in self._ledger.entries() if entry["shard"] == shard}
        except KeyError:
            raise DataError(f"{NAME}: expected entries as this client writes them, got another") from None

    def of_shard(self, shard: str) -> KnownAnchors:
        """Those of another shard of this silo, by its digest."""
        return KnownAnchors(self._ledger, shard, limit=self._limit, agreed=self._agreed)

    def accept(self, question: AnchorQuestion, said: AnchorOut) -> Float64:
        """K^R as it is drawn here. PrivacyError for another one, or for one too many. Slow: it draws a graph."""
        method, size = question.method, self._size(question, said)
        own = draw_anchor(method, size, seed=question.seed, number=question.number)
        if not same_kernel(own, np.array(said.kernel, dtype=np.float64)):
            raise PrivacyError("anchor: expected the kernel that follows from the run's settings and seed, got another")
        self._count(question, size)
        return own

    def _size(self, question: AnchorQuestion, said: AnchorOut) -> Counts:
        if question.method.anchor.size == "declared":
            return declared_size(question.method.anchor)
        if self._agreed is None or said.size != self._agreed:
            got = "none" if said.size is None else f"{said.size.users} x {said.size.items} x {said.size.edges}"
            raise PrivacyError(f"anchor: expected the size that policy.anchor_size has agreed upon, got {got}")
        return self._agreed

    def _count(self, question: AnchorQuestion, size: Counts) -> None:
        kernel = digest_anchor(question.method, seed=question.seed, number=question.number)
        anchor = f"{kernel}/{size.users}/{size.items}/{size.edges}{_training_digest(question)}"
        if self._limit is None or anchor in self._known:
            return
        if len(self._known) >= self._limit:
            words = f"expected at most {self._limit} different anchors for one shard (policy.anchors)"
            raise PrivacyError(f"anchor: {words}, got another one: start the run with an earlier one's seed")
        self._ledger.append("anchor", seal=True, shard=self._shard, anchor=anchor)
        self._known.add(anchor)


def _training_digest(question: AnchorQuestion) -> str:
    """What makes rho another number beside the anchor: a trained kernel is another one after each round of training."""
    if question.method.signal != "trained":
        return ""
    return f"/{digest_method(question.method)}/{question.seed}/{question.run}/{question.number}"
