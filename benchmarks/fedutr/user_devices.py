"""Trains one device for each user, all devices of a step at once.

It is the reference for strategies with an item table where a client is a user, as in their papers: SGD, new optimisers
in each round, samples of a device's own. Only the rows of items that a device samples are stored for it.
Shapes: M users, N items, d width, P pairs of a user and an item that are trained, U users and S samples of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from benchmarks.fedutr.sets import Int64, Scores

EPSILON = 1e-5  # of the layer normalisation
CHUNK = 2  # users that are scored at once with fusions of their own, so that their rows stay in the cache
BLOCK = 128  # users of a step, with similar numbers of samples; devices do not meet before the mean
FUSION = ("weight", "bias", "gain", "shift")
Values = dict[str, Tensor]


@dataclass(frozen=True)
class DeviceSettings:
    """Settings of all devices and of the server's mean.

    user_rate: of what a device keeps, and of the fusion. item_rate: of rows of items. rate_decay: factor of both a
    round. deviation: of the item rows at the start. intercept: a score has a constant of each user. avoided: no
    negative is one of a user's training items, or, as in the public code of PFedRec and FedRAP, one of his validation
    and test items either. redraw: negatives are drawn anew in each round. balanced: a loss is the mean of positives
    plus that of negatives, not the mean of all. tuned: a device ranks with the table that it trained, not with the
    server's mean. table_mean: a row's mean over all devices or over those that moved it. distance, strength: FedRAP's
    two weights; strength is FedUTR's L1 too. growth: FedRAP's weights grow as tanh of a tenth of the rounds. fusion,
    normalise, adaptation, sparsity_aware: FedUTR's CIFM, LayerNorm, LAM and SAR. clip, noise: norm to which a device's
    update is cut, and deviation of Gaussian noise on the sum in units of it. laplace: scale of the noise on each table
    that leaves.
    """

    strategy: Literal["fedmf", "pfedrec", "fedrap", "fedutr"] = "fedmf"
    width: int = 32
    rounds: int = 100
    user_rate: float = 0.1
    item_rate: float = 1e4
    rate_decay: float = 1.0
    batch_size: int = 256
    negatives: int = 4
    epochs: int = 1
    deviation: float = 1.0
    intercept: bool = True
    avoided: Literal["train", "all"] = "train"
    redraw: bool = True
    balanced: bool = False
    tuned: bool = False
    table_mean: Literal["all", "moved"] = "all"
    distance: float = 0.0
    strength: float = 0.0
    growth: bool = False
    fusion: bool = True
    normalise: bool = True
    adaptation: bool = True
    sparsity_aware: bool = False
    clip: float = 0.0
    noise: float = 0.0
    laplace: float = 0.0


class Samples(NamedTuple):
    """Users, items and labels (1 taken, 0 not) of a round, each (R,)."""

    users: Int64
    items: Int64
    labels: NDArray[np.float32]


class Step(NamedTuple):
    """One batch of each device that has one left.

    users (U,), their pairs (U, S), labels and validity (U, S).
    """

    users: Tensor
    pairs: Tensor
    labels: Tensor
    valid: Tensor


def draw_samples(
    train: sparse.csr_array, avoided: NDArray[np.bool_], negatives: int, generator: np.random.Generator
) -> Samples:
    """Takes every training pair and draws items that its user does not have.

    avoided: (M, N), what may not be drawn. `negatives` are drawn for each pair, with equal chances.
    """
    pairs = train.tocoo()
    users = np.repeat(pairs.row.astype(np.int64), negatives)
    drawn = generator.integers(train.shape[1], size=len(users))
    wrong = np.flatnonzero(avoided[users, drawn])
    while len(wrong):
        drawn[wrong] = generator.integers(train.shape[1], size=len(wrong))
        wrong = wrong[avoided[users[wrong], drawn[wrong]]]
    labels = np.concatenate([np.ones(pairs.nnz, np.float32), np.zeros(len(users), np.float32)])
    return Samples(
        np.concatenate([pairs.row.astype(np.int64), users]), np.concatenate([pairs.col.astype(np.int64), drawn]), labels
    )


def pack_steps(
    samples: Samples, pairs: Int64, batch_size: int, generator: np.random.Generator | None
) -> Iterator[Step]:
    """Packs a round's samples into batches of each user, in an order that is drawn.

    pairs: (R,), the place of each sample's pair. generator: None keeps the order given.
    """
    keys = np.arange(len(pairs)) if generator is None else generator.random(len(pairs))
    order = np.lexsort([keys, samples.users])
    users = samples.users[order]
    begins = np.flatnonzero(np.diff(users, prepend=-1))
    place = np.arange(len(users)) - np.repeat(begins, np.diff(begins, append=len(users)))
    for number in range(int(place.max()) // batch_size + 1):
        chosen = np.flatnonzero((place // batch_size) == number)
        own, rows = np.unique(users[chosen], return_inverse=True)
        columns = place[chosen] % batch_size
        shape = (len(own), int(columns.max()) + 1)
        found, labels, valid = np.zeros(shape, np.int64), np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        found[rows, columns] = pairs[order[chosen]]
        labels[rows, columns] = samples.labels[order[chosen]]
        valid[rows, columns] = 1.0
        counts = valid.sum(1).astype(np.int64)
        ranked = np.argsort(-counts, kind="stable")
        for block in np.split(ranked, range(BLOCK, len(ranked), BLOCK)):
            widest = counts[block[0]]
            yield Step(
                torch.from_numpy(own[block]),
                *(torch.from_numpy(one[block, :widest]) for one in (found, labels, valid)),
            )


def measure_loss(scores: Tensor, step: Step, *, balanced: bool) -> Tensor:
    """Computes the binary cross-entropy of each device, (U,).

    scores: (U, S).
    """
    losses = functional.binary_cross_entropy_with_logits(scores, step.labels, reduction="none")
    if not balanced:
        return (losses * step.valid).sum(1) / step.valid.sum(1).clamp(min=1)
    taken, other = step.labels * step.valid, (1 - step.labels) * step.valid
    return sum(((losses * side).sum(1) / side.sum(1).clamp(min=1) for side in (taken, other)), torch.zeros(()))


def score_rows(own: Mapping[str, Tensor], rows: Tensor) -> Tensor:
    """Computes <w_u, v> + b_u for item rows of each user, (U, S).

    rows: (U, S, d); vectors: (U, d).
    """
    return (rows @ own["vector"][:, :, None])[..., 0] + own["intercept"][:, None]


def fuse_rows(own: Mapping[str, Tensor], rows: Tensor, settings: DeviceSettings) -> Tensor:
    """Computes FedUTR's EF with a fusion for each user, (U, S, d).

    own: `weight` (U, d, d), `bias`, `gain` and `shift` (U, d); for SAR also `slope`, `level` and `log_count` (U,).
    """
    if not settings.fusion:
        return rows
    taught = functional.relu(rows @ own["weight"].transpose(1, 2) + own["bias"][:, None])
    if settings.sparsity_aware:
        share = torch.sigmoid(own["slope"] * own["log_count"] + own["level"])[:, None, None]
        fused = share * taught + (1 - share) * rows
    else:
        fused = taught + rows
    if not settings.normalise:
        return fused
    even = functional.layer_norm(fused, fused.shape[-1:], eps=EPSILON)
    return even * own["gain"][:, None] + own["shift"][:, None]


def mix_fusions(common: Values, own: Values, adaptation: Mapping[str, Tensor]) -> Values:
    """Mixes the common fusion and each user's own by the adaptation's shares.

    Shapes: common (d, ...), own (U, d, ...).
    """
    logits = adaptation["of_common"] @ common["weight"].T + adaptation["level"][:, None]
    share = torch.sigmoid(logits + (own["weight"] @ adaptation["of_own"][:, :, None])[..., 0])
    return {
        name: share[..., None] * common[name] + (1 - share[..., None]) * own[name]
        if name == "weight"
        else share * common[name] + (1 - share) * own[name]
        for name in FUSION
    }


@dataclass
class UserDevices:
    """All devices of a federation with one client per user, and its server."""

    train: sparse.csr_array
    avoided: NDArray[np.bool_]
    settings: DeviceSettings
    seed: int
    start: Scores | None = None
    draw: Callable[[], Samples] | None = None  # of a round's samples in place of the own ones, in their order
    number: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        settings, (users, items) = self.settings, self.train.shape
        self.generator = np.random.default_rng(self.seed)
        width, normal = settings.width, self.generator.normal
        rows = normal(0.0, settings.deviation, (items, width)) if self.start is None else self.start
        self.table = torch.tensor(rows, dtype=torch.float32)
        bound = 1.0 / np.sqrt(width)
        vector = torch.tensor(self.generator.uniform(-bound, bound, width), dtype=torch.float32)
        # One start for all devices: they are copies of one model.
        self.own: Values = {"vector": vector.repeat(users, 1), "intercept": torch.zeros(users)}
        self.received = self.table
        self.personal_start = torch.tensor(normal(0.0, settings.deviation, (items, width)), dtype=torch.float32)
        self.personal: Tensor | None = None
        self.pairs: Int64 | None = None  # keys user * N + item of `local` and `personal`
        self.local: Tensor | None = None
        self.samples: Samples | None = None
        if settings.strategy == "fedutr":
            self._begin_fusion(users, width)

    def _begin_fusion(self, users: int, width: int) -> None:
        bound = np.sqrt(6.0 / (2 * width))
        weight = torch.tensor(self.generator.uniform(-bound, bound, (width, width)), dtype=torch.float32)
        ones, zeros = torch.ones(width), torch.zeros(width)
        self.common: Values = {"weight": weight, "bias": zeros, "gain": ones, "shift": zeros.clone()}
        self.own |= {name: value.repeat(users, *[1] * value.ndim) for name, value in self.common.items()}
        names = ("of_common", "of_own")
        self.adaptation = {name: torch.zeros(users, width) for name in names} | {"level": torch.zeros(users)}
        counts = torch.tensor(np.maximum(np.diff(self.train.indptr), 1), dtype=torch.float32)
        self.own |= {"slope": torch.zeros(users), "level": torch.zeros(users), "log_count": counts.log()}

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of a device's own parameters that are trained with its vector."""
        settings = self.settings
        plain = ("vector", "intercept") if settings.intercept else ("vector",)
        if settings.strategy != "fedutr" or not settings.fusion:
            return plain
        names = FUSION if settings.normalise else FUSION[:2]
        return (*plain, *names, *(("slope", "level") if settings.sparsity_aware else ()))

    def run_round(self) -> None:
        """Trains every device once and takes the mean of their tables and fusions."""
        settings, items = self.settings, self.train.shape[1]
        decay = settings.rate_decay**self.number
        self.number += 1
        fresh = self.samples is None or settings.redraw
        if self.draw is not None:
            self.samples = self.draw()
        elif fresh:
            self.samples = draw_samples(self.train, self.avoided, settings.negatives, self.generator)
        samples = self.samples
        assert samples is not None
        if fresh or self.pairs is None:
            self._place_pairs(samples.users * items + samples.items)
        assert self.pairs is not None
        columns = torch.from_numpy(self.pairs % items)
        self.received = self.table
        self.local = self.table[columns].clone()
        if settings.strategy == "fedutr" and settings.fusion:
            self._take_fusion(samples, decay)
        for _ in range(settings.epochs):
            shuffled = None if self.draw is not None else self.generator
            for step in pack_steps(samples, self._inverse, settings.batch_size, shuffled):
                self._step(step, decay)
        self._aggregate(columns)

    def _place_pairs(self, keys: Int64) -> None:
        """Finds the round's pairs and each sample's index; earlier personal rows stay."""
        before, personal = self.pairs, self.personal
        if before is None or personal is None:
            self.pairs, self._inverse = np.unique(keys, return_inverse=True)
        else:
            self.pairs = np.union1d(before, keys)
            self._inverse = np.searchsorted(self.pairs, keys)
        if self.settings.strategy == "fedrap":
            self.personal = self.personal_start[torch.from_numpy(self.pairs % self.train.shape[1])].clone()
            if before is not None and personal is not None:
                self.personal[torch.from_numpy(np.searchsorted(self.pairs, before))] = personal

    def _take_fusion(self, samples: Samples, decay: float) -> None:
        """Gives each device the common fusion, mixed with its own after the first round."""
        settings = self.settings
        if not settings.adaptation or self.number == 1:
            users = len(self.own["vector"])
            self.own |= {name: value.repeat(users, *[1] * value.ndim) for name, value in self.common.items()}
            return
        assert self.local is not None
        shuffled = None if self.draw is not None else self.generator
        for step in pack_steps(samples, self._inverse, settings.batch_size, shuffled):
            leaves = {name: value[step.users].requires_grad_() for name, value in self.adaptation.items()}
            own = {name: value[step.users] for name, value in self.own.items()}
            mixed = own | mix_fusions(self.common, own, leaves)
            scores = score_rows(own, fuse_rows(mixed, self.local[step.pairs], settings))
            loss = measure_loss(scores, step, balanced=settings.balanced).sum()
            for name, gradient in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                self.adaptation[name][step.users] -= decay * settings.user_rate * gradient
        self.own |= mix_fusions(self.common, self.own, self.adaptation)

    def _step(self, step: Step, decay: float) -> None:
        """Takes one step of each device; PFedRec updates its score function first.

        Its item rows follow.
        """
        if self.settings.strategy == "pfedrec":
            self._descend(step, decay, own=True, rows=False)
            self._descend(step, decay, own=False, rows=True)
        else:
            self._descend(step, decay, own=True, rows=True)

    def _descend(self, step: Step, decay: float, *, own: bool, rows: bool) -> None:
        settings, local = self.settings, self.local
        assert local is not None
        values = {name: value[step.users] for name, value in self.own.items()}
        leaves: Values = {}
        if own:
            leaves = {name: values[name].requires_grad_() for name in self.trained}
        found = local[step.pairs].requires_grad_(rows)
        if rows:
            leaves["rows"] = found
        given = found
        if self.personal is not None:
            mine = self.personal[step.pairs].requires_grad_()
            leaves["personal"] = mine
            given = found + mine
        if settings.strategy == "fedutr":
            given = fuse_rows(values, given, settings)
        loss = measure_loss(score_rows(values, given), step, balanced=settings.balanced)
        if self.personal is not None:
            loss = loss + self._measure_penalties(found, leaves["personal"], step)
        gradients = torch.autograd.grad(loss.sum(), list(leaves.values()))
        for name, gradient in zip(leaves, gradients, strict=True):
            if name in ("rows", "personal"):
                target = local if name == "rows" else self.personal
                assert target is not None
                change = -decay * settings.item_rate * gradient.reshape(-1, settings.width)
                target.index_add_(0, step.pairs.reshape(-1), change)
            else:
                self.own[name][step.users] -= decay * settings.user_rate * gradient
        if own and settings.strategy == "fedutr" and settings.fusion and settings.strength:
            for name in ("weight", "bias"):
                shrunk = functional.softshrink(
                    self.own[name][step.users], decay * settings.user_rate * settings.strength
                )
                self.own[name][step.users] = shrunk

    def _measure_penalties(self, common: Tensor, personal: Tensor, step: Step) -> Tensor:
        """Computes FedRAP's penalties over the rows of a batch, (U,)."""
        settings = self.settings
        growth = float(np.tanh((self.number - 1) / 10)) if settings.growth else 1.0
        count = step.valid.sum(1).clamp(min=1) * settings.width
        distance = (((personal - common) ** 2).sum(2) * step.valid).sum(1) / count
        size = (common.abs().sum(2) * step.valid).sum(1) / count
        return growth * (settings.strength * size - settings.distance * distance)

    def _aggregate(self, columns: Tensor) -> None:
        settings, devices = self.settings, self.train.shape[0]
        assert self.local is not None and self.pairs is not None
        changes = self.local - self.table[columns]
        fused = settings.strategy == "fedutr" and settings.fusion
        if settings.clip:
            owners = torch.from_numpy(self.pairs // self.train.shape[1])
            squares = torch.zeros(devices).index_add_(0, owners, (changes**2).sum(1))
            if fused:
                squares += sum(((self.own[n] - self.common[n]) ** 2).flatten(1).sum(1) for n in FUSION)
            factors = (settings.clip / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
            self.norms = squares.sqrt()
            changes = changes * factors[owners][:, None]
        total = torch.zeros_like(self.table).index_add_(0, columns, changes)
        if settings.table_mean == "moved":
            moved = (changes != 0).any(1).float()
            movers = torch.zeros(len(self.table)).index_add_(0, columns, moved)
            self.table = self.table + total / movers.clamp(min=1)[:, None]
        else:
            self.table = self.table + total / devices
        deviation = settings.clip * settings.noise / devices
        # Paper: Laplace noise on each device's table; here: a normal one of the mean's variance, to which it comes.
        deviation = float(np.hypot(deviation, settings.laplace * np.sqrt(2.0 / devices)))
        if deviation:
            noise = self.generator.normal(0.0, deviation, self.table.shape)
            self.table = self.table + torch.tensor(noise, dtype=torch.float32)
        if fused:
            for name in FUSION:
                mean = (self.own[name] - self.common[name]) * (
                    factors.reshape(-1, *[1] * self.common[name].ndim) if settings.clip else 1.0
                )
                self.common[name] = self.common[name] + mean.mean(0)
                if settings.noise:
                    drawn = self.generator.normal(0.0, settings.clip * settings.noise / devices, mean.shape[1:])
                    self.common[name] = self.common[name] + torch.tensor(drawn, dtype=torch.float32)

    @torch.no_grad()
    def score_items(self, users: Int64 | None = None) -> Scores:
        """Scores all items for users, (U, N); None: all users.

        It uses the devices' own state and the server's table; if `tuned`, the table that the devices received, with
        each device's trained rows.
        """
        settings = self.settings
        rows = self.received if settings.tuned else self.table
        chosen = np.arange(self.train.shape[0]) if users is None else users
        own = {name: value[torch.from_numpy(chosen)] for name, value in self.own.items()}
        if settings.strategy == "fedutr" and settings.fusion:
            return self._score_fused(chosen, own)
        if self.personal is not None:
            rows = rows + self.personal_start
        scores: Scores = (own["vector"] @ rows.T).numpy()
        if self.pairs is not None and (settings.tuned or self.personal is not None):
            owners, columns = self.pairs // self.train.shape[1], self.pairs % self.train.shape[1]
            place = np.full(self.train.shape[0], -1)
            place[chosen] = np.arange(len(chosen))
            kept = np.flatnonzero(place[owners] >= 0)
            assert self.local is not None
            found = self.local[kept] if settings.tuned else self.table[torch.from_numpy(columns[kept])]
            if self.personal is not None:
                found = found + self.personal[kept]
            vectors = self.own["vector"][torch.from_numpy(owners[kept])]
            scores[place[owners[kept]], columns[kept]] = (found * vectors).sum(1).numpy()
        return scores

    def _score_fused(self, users: Int64, own: Values) -> Scores:
        """Scores with the fusion that a device would begin its next round with."""
        settings, count = self.settings, len(users)
        if settings.adaptation:
            rows = torch.from_numpy(users)
            own = own | mix_fusions(self.common, own, {name: value[rows] for name, value in self.adaptation.items()})
        else:
            own = own | {name: value.expand(count, *value.shape) for name, value in self.common.items()}
            if not settings.sparsity_aware:
                return np.asarray(own["vector"] @ fuse_rows(_first(own), self.table[None], settings)[0].T)
        scores = np.empty((count, len(self.table)), np.float32)
        for first in range(0, count, CHUNK):
            part = {name: value[first : first + CHUNK] for name, value in own.items()}
            fused = fuse_rows(part, self.table.expand(len(part["vector"]), *self.table.shape), settings)
            scores[first : first + CHUNK] = (fused @ part["vector"][:, :, None])[..., 0].numpy()
        return scores


def _first(values: Values) -> Values:
    return {name: value[:1] for name, value in values.items()}
