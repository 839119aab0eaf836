"""Groups of the method's settings: each a field of MethodSettings with fields of its own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.message import Message

Server = Literal["none", "momentum", "adagrad", "adam", "yogi", "ga"]
Magnitudes = Literal["off", "computed", "reported"]


class AnchorSettings(Message):
    """The neutral random bipartite graph G_R (Appendix D.3)."""

    graph: Literal["gnmk", "er"] = Field("gnmk", description="uniform edges of a given number, or independent edges")
    size: Literal["declared", "counts"] = Field(
        "declared", description="size from these settings, or the mean of what clients agreed to count"
    )
    users: int = Field(1000, ge=8, le=1_000_000, description="users of the drawn graph")
    items: int = Field(1000, ge=8, le=1_000_000, description="items of the drawn graph")
    edges: int = Field(20_000, ge=8, le=100_000_000, description="edges of the drawn graph")
    every_round: bool = Field(False, description="draw a new graph each round, as the paper says, or once a run")


class BasisSettings(Message):
    """The common basis: statistics of the items, summed over the silos before a training run."""

    kind: Literal["off", "exact", "iterated"] = Field(
        "off", description="nothing; degrees and pairs of all items; or the lowest frequencies of the items' graph"
    )
    rank: int = Field(128, ge=1, le=4096, description="iterated: r, number of frequencies")
    rounds: int = Field(3, ge=2, le=100, description="iterated: rounds; after one alone a basis is worse than none")
    words: int | None = Field(
        None,
        ge=2,
        le=4096,
        description="iterated: numbers of 32 bits that an item has in a round; the basis then follows from the products"
        " of all rounds, which from the second one on are two in a number; none: rank, and from the last round alone",
        exclude_if=lambda words: words is None,
    )
    exponent: float = Field(0.25, ge=0, le=0.5, description="iterated: e of R = D_u^-e X D_i^-e")
    least_pairs: int = Field(3, ge=1, le=1000, description="exact: k; pairs of items that fewer users have count as 0")
    least_silos: int = Field(
        3, ge=3, le=1024, description="m; fewer are not summed, and no sums may differ by the data of fewer"
    )

    epsilon: float | None = Field(
        None, gt=0, le=100, description="exact: of one user, for the one noised sum that is made then; none: no noise"
    )
    delta: float = Field(1e-5, gt=0, le=0.01, description="at which that epsilon holds")

    @property
    def rounds_needed(self) -> int:
        """Rounds of a basis run."""
        return self.rounds if self.kind == "iterated" else 1

    @property
    def directions(self) -> int:
        """iterated: from the products with how many the basis follows."""
        return self.rank if self.words is None else self.words * (2 * self.rounds - 1) - 1

    @property
    def sums_needed(self) -> int:
        """The last so many rounds, from whose sums a basis follows."""
        return self.rounds_needed if self.words is not None else min(2, self.rounds_needed)


class ServerStepSettings(Message):
    """How the server steps, where `server` is not none."""

    rate: float | None = Field(None, gt=0, le=1e3, description="eta; none: 1 with momentum, .005 with the others")
    beta1: float = Field(0.9, ge=0, lt=1, description="how much of the first moment lasts a round")
    beta2: float = Field(0.99, ge=0, lt=1, description="how much of the second moment lasts a round")
    tau: float = Field(1e-3, gt=0, le=1e3, description="least divisor of a step; its square begins the second moment")
    second_moment: Literal["clip", "ramp"] = Field("clip", description="ga: which reading of C-SME")
    magnitudes: Magnitudes | None = Field(
        None,
        description="what the second moment follows: the mean's change (off), or the mean of the clients' absolute"
        " changes, which the aggregator computes; where it sees sums alone, clients report one number, the root mean"
        " square of their update's change; none: computed with ga, off with the others",
    )


class SessionSettings(Message):
    """How session models are trained."""

    candidates: Literal["own", "catalogue"] = Field(
        "own", description="a click is told from the silo's own items, whose rows alone are trained, or from all items"
    )
    weight_decay: float = Field(1e-5, ge=0, le=1, description="L2 of the optimiser, over all tensors that are trained")
    rate_step: int = Field(
        0, ge=0, le=10_000, description="rounds after which the learning rate is a tenth of what it was; 0: it stays"
    )
