"""Checks the aggregator's anchor against the one that this client draws, and counts anchors.

Each rho tells one number about the silo's spectrum, given the anchor. An aggregator that chose anchors, or that had
rho compared with very many of them, could reconstruct the spectrum from the answers. So anchors follow from public
settings and a seed, and a silo answers for a limited number of different ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from client_service.boundary.ledger import Ledger
from shared.errors import DataError, PrivacyError
from shared.method.anchor import declared_size, draw_anchor, is_same_kernel
from shared.method.declaration import Counts
from shared.method.graph import Float64
from shared.method.settings import MethodSettings
from shared.protocol.schemas import AnchorOut
from shared.protocol.secure.common import digest_anchor, digest_method

NAME = "anchors.jsonl"  # in the state directory


@dataclass(frozen=True)
class AnchorInputs:
    """Inputs of K^R: the run's settings and seed, and the round.

    run: the run whose trained kernel it is.
    """

    method: MethodSettings
    seed: int
    number: int
    run: str = ""


class KnownAnchors:
    """Anchors that rho of one shard was compared with, over all runs and restarts.

    `limit`: how many different ones the silo's policy allows; None: any number, because rho leaves with noise that is
    accounted for. `agreed`: size of an anchor whose size follows from counts, as the silos have agreed on it.
    """

    def __init__(self, ledger: Ledger, shard: str, *, limit: int | None, agreed: Counts | None) -> None:
        """Reads the anchors of a shard from a ledger of anchors.

        shard: its digest. Raises DataError for a damaged file.
        """
        self._ledger, self._shard = ledger, shard
        self._limit, self._agreed = limit, agreed
        self._ledger.verify()
        try:
            self._known = {entry["anchor"] for entry in self._ledger.entries() if entry["shard"] == shard}
        except KeyError:
            raise DataError(f"{NAME}: expected entries as this client writes them, got another") from None

    def for_shard(self, shard: str) -> KnownAnchors:
        """Returns the anchors of another shard of this silo, by its digest."""
        return KnownAnchors(self._ledger, shard, limit=self._limit, agreed=self._agreed)

    def check_anchor(self, inputs: AnchorInputs, answer: AnchorOut) -> Float64:
        """Returns K^R as this client draws it, and records it.

        Raises PrivacyError if the aggregator states another kernel, and if the limit of anchors is reached.
        Slow: it draws a graph.
        """
        method, size = inputs.method, self._agreed_size(inputs, answer)
        own = draw_anchor(method, size, seed=inputs.seed, number=inputs.number)
        if not is_same_kernel(own, np.array(answer.kernel, dtype=np.float64)):
            raise PrivacyError("anchor: expected the kernel that follows from the run's settings and seed, got another")
        self._record_anchor(inputs, size)
        return own

    def _agreed_size(self, inputs: AnchorInputs, answer: AnchorOut) -> Counts:
        if inputs.method.anchor.size == "declared":
            return declared_size(inputs.method.anchor)
        if self._agreed is None or answer.size != self._agreed:
            got = "none" if answer.size is None else f"{answer.size.users} x {answer.size.items} x {answer.size.edges}"
            raise PrivacyError(f"anchor: expected the size that policy.anchor_size has agreed upon, got {got}")
        return self._agreed

    def _record_anchor(self, inputs: AnchorInputs, size: Counts) -> None:
        kernel = digest_anchor(inputs.method, seed=inputs.seed, number=inputs.number)
        anchor = f"{kernel}/{size.users}/{size.items}/{size.edges}{_training_digest(inputs)}"
        if self._limit is None or anchor in self._known:
            return
        if len(self._known) >= self._limit:
            words = f"expected at most {self._limit} different anchors for one shard (policy.anchors)"
            raise PrivacyError(f"anchor: {words}, got another one: start the run with an earlier one's seed")
        self._ledger.append("anchor", durable_head=True, shard=self._shard, anchor=anchor)
        self._known.add(anchor)


def _training_digest(inputs: AnchorInputs) -> str:
    """Returns what identifies a trained kernel, which changes with each round; "" for other kernels."""
    if inputs.method.signal != "trained":
        return ""
    return f"/{digest_method(inputs.method)}/{inputs.seed}/{inputs.run}/{inputs.number}"
