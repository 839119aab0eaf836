"""One shard and one model behind the verbs that a strategy may use: load, train, arrays, divergence, mean margin."""

from __future__ import annotations

import hashlib
import hmac
import zlib
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from client_service.learning.filters import best_filter
from client_service.learning.fusing import best_recipe
from client_service.learning.interrupt import NEVER, Interrupt
from client_service.learning.mean_margin import mean_margin
from client_service.learning.sampling import PairSampler
from client_service.learning.state import MODEL, TABLES, TrainingState, captured, fill, fits, reminded
from client_service.learning.train import Margins, build_optimiser, fit_tables, losses_of_groups, pair_loss
from client_service.models.fusion import Recipe, fuse
from client_service.models.lgcn import LGCN
from client_service.models.model import Ingredients
from client_service.models.popularity import PopularityTables
from client_service.models.registry import MODELS
from client_service.models.start import Filter, start_at
from client_service.shard import Shard
from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import TensorSpec
from shared.method.divergence import comparable, divergence, kernel, round_divergence
from shared.method.exchanged import Parameters
from shared.method.graph import Float64
from shared.method.parameters import Float32, initial_parameters
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum
from shared.strategies.strategy import Loss, Penalty


@dataclass(frozen=True)
class Moment:
    """Where in a run a client trains: round 1..rounds, the run's seed, the anchor's kernel if there is one.

    draws: a secret from which the draws follow too, in a secure federation; without it they follow from the seed alone.
    """

    round: int
    rounds: int
    seed: int
    anchor: Float64 | None = None
    draws: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Aim:
    """What the epochs of a round are trained for: see LocalClient.train. `weights` (M,) are those of each user."""

    margins: Margins | None
    penalty: Penalty | None
    only: str
    loss: Loss
    weights: Tensor | None


@dataclass
class Figures:
    """What training a round was like. Stays in the silo."""

    loss: float = float("nan")
    saturated: float = 0.0
    table_steps: int = 0


class LocalTraining:
    """The client's half of every strategy (see shared.strategies.strategy.LocalClient). `moment` is set each round.

    `kind` names the model, "" the one of the settings. An exact start is at `start`, or where none is given at the
    filter that the shard's validation data prefer; likewise `recipe` says what is fused with the trained score.
    Whatever is slow ends with Interrupted once `interrupt` is set.
    """

    def __init__(
        self,
        shard: Shard,
        spectrum: Spectrum,
        method: MethodSettings,
        device: torch.device,
        start: Filter | None = None,
        interrupt: Interrupt = NEVER,
        kind: str = "",
        recipe: Recipe | None = None,
    ) -> None:
        self.shard, self.spectrum, self.method, self.device = shard, spectrum, method, device
        self._interrupt = interrupt
        chosen = MODELS[kind or method.model]
        self.exact = chosen.starts and method.start == "exact"
        self.start = (start or best_filter(shard, spectrum, interrupt).choice) if self.exact else None
        origin = None if self.start is None else start_at(self.start, spectrum, shard.train)
        self.recipe = None  # whatever another model on the shard has chosen
        if self.start is not None and method.fusion:
            self.recipe = recipe or best_recipe(shard, spectrum, self.start, interrupt)
        self.fusion = fuse(self.recipe, shard.train, spectrum)
        self.codes = self.fusion.encoded(shard.train)
        self.model = chosen.build(Ingredients(spectrum, shard.train, origin, shard.places, method)).to(device)
        self.tables = PopularityTables(shard.train, method.width).to(device)
        self.figures = Figures()
        self.moment = Moment(round=1, rounds=1, seed=0)
        self._batches = PairSampler(
            shard.train, batch_size=method.batch_size, negatives=method.negatives, device=device
        )
        self._optimisers: dict[str, torch.optim.Optimizer] = {}
        self._active = _more_active(shard.train).to(device)
        self._held: dict[str, Tensor] | None = None
        self._fitted = False
        self.initialise(seed=0)

    def initialise(self, seed: int) -> None:
        """What could be shared, where a run with this seed begins, whether or not it ever is."""
        tensors = tuple(TensorSpec(name=name, shape=tuple(p.shape)) for name, p in sorted(self._exchangeable()))
        self.load(Parameters(initial_parameters(tensors, seed, exact=self.exact)))
        self.model.trained()

    def load(self, received: Parameters) -> None:
        """Overwrite the named parameters, and keep what came for penalties and for the refined margin."""
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in received.arrays.items():
                if name not in own or own[name].shape != value.shape:
                    raise ProtocolError(
                        f"expected a parameter of this model, got {name!r} of shape {list(value.shape)}"
                    )
                own[name].copy_(torch.from_numpy(np.array(value)))
        self.received, self._held = received, None

    def state(self) -> TrainingState:
        """As it is now, on the CPU: to be kept before training goes on."""
        return captured(self.model, self.tables, self._optimisers, self.received, self._fitted)

    def fits(self, state: TrainingState) -> bool:
        """Is it a state of this very model?"""
        return fits(state, self.model, self.tables)

    def restore(self, state: TrainingState) -> None:
        """Take over a state that fits: training goes on as it would have, to the bit."""
        fill(self.model, state.part(MODEL))
        fill(self.tables, state.part(TABLES))
        self.received, self._held, self._fitted = state.received, None, state.fitted
        self._optimisers = {
            only: reminded(build_optimiser(self.model, self.method, only), self.model, memory)
            for only, memory in state.memories().items()
        }

    def train(
        self,
        *,
        bias_aware: bool = False,
        penalty: Penalty | None = None,
        only: str = "",
        loss: Loss = "",
        weights: tuple[float, float] = (1.0, 1.0),
    ) -> None:
        """The round's local epochs; in the warm-up the popularity tables are fitted and no margin is used yet."""
        generator = torch.Generator().manual_seed(self._seed("train"))
        warming = bias_aware and self.moment.round <= self.method.warmup(self.moment.rounds)
        self.figures = Figures()
        if warming or (bias_aware and not self._fitted):  # who comes late, or again, has not been through the warm-up
            self.figures.table_steps = fit_tables(self.tables, self._batches, self.method, generator, self._interrupt)
            self._fitted = True
        if warming and self.method.warmup_trains == "tables":
            return
        margins = self._margins() if bias_aware and not warming else None
        by_user = None if weights == (1.0, 1.0) else torch.tensor(weights, device=self.device)[self._active]
        for _ in range(self.method.local_epochs):
            self._epoch(generator, Aim(margins, penalty, only, loss, by_user))
        self.model.trained()

    def arrays(self) -> dict[str, Float32]:
        """What could be shared, as it is now, on the CPU."""
        return {name: p.detach().cpu().numpy().copy() for name, p in self._exchangeable()}

    def divergence(self) -> float | None:
        """rho (Eq. 11) against the moment's anchor, rounded; None without one, or with too short a spectrum."""
        rho = None if self.moment.anchor is None else divergence(self.moment.anchor, kernel(self._signal()))
        return None if rho is None else round_divergence(rho)

    def compared(self) -> tuple[Float64, Float64] | None:
        """The anchor's kernel and the own one as the divergence compares them; None without an anchor."""
        if self.moment.anchor is None:
            return None
        return comparable(self.moment.anchor, kernel(self._signal()))

    def mean_margin(self) -> float:
        """M^c (Eq. 10)."""
        generator = torch.Generator().manual_seed(self._seed("margin"))
        return mean_margin(self._encoder(), self.tables, self.method.margin_strength, generator, self._interrupt)

    def losses_by_activity(self) -> tuple[float, float]:
        """Mean BPR loss over the training pairs of the less and of the more active half of the users."""
        generator = torch.Generator().manual_seed(self._seed("activity"))
        return losses_of_groups(self.model, self._batches, self._active, generator, self._interrupt)

    def generator(self, purpose: str, *, once_a_run: bool = False) -> np.random.Generator:
        """Noise on what leaves must not be guessed: beside what the aggregator knows, the shard's content seeds it."""
        number = 0 if once_a_run else self.moment.round
        text = f"{self.shard.digest}/{self.moment.seed}/{number}/{purpose}"
        return np.random.default_rng(int.from_bytes(hashlib.sha256(text.encode()).digest()))

    def _signal(self) -> Float64:
        """The eigenvalues, or (Algorithm 3) the eigenvalues weighted by the trained kernel of the last layer."""
        if self.method.signal == "eigenvalues":
            return self.spectrum.eigenvalues
        weights = self._encoder().kernels[-1].detach().abs().cpu().double().numpy()
        weighted: Float64 = self.spectrum.eigenvalues * weights
        return weighted

    def _exchangeable(self) -> list[tuple[str, Tensor]]:
        return [(name, p) for name, p in self.model.named_parameters() if name.startswith(self.model.exchangeable)]

    def _encoder(self) -> LGCN:
        """The model, where angles and kernels mean something."""
        if not isinstance(self.model, LGCN):
            raise SettingsError(f"model: expected a low-pass encoder, which has margins, got {self.method.model!r}")
        return self.model

    def _margins(self) -> Margins | None:
        if self.method.margin_strength == 0.0:
            return None
        updated = self.received.scalars.get("margin")
        return Margins(self.tables, self.method.margin_strength, self.method.refinement, updated)

    def _epoch(self, generator: torch.Generator, aim: Aim) -> None:
        optimiser = self._optimisers.setdefault(aim.only, build_optimiser(self.model, self.method, aim.only))
        losses, saturated = [], []
        for batch in self._interrupt.each(self._batches.epoch(generator)):
            loss, share = pair_loss(self.model, batch, self.method, aim.margins, aim.loss, aim.weights)
            loss = loss if aim.penalty is None else loss + self._penalised(aim.penalty)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if self.method.decay and "embedding".startswith(aim.only):
                self.model.pull_to_start(self.method.decay * self.method.learning_rate)
            losses.append(loss.detach())
            saturated.append(share)
        self.figures.loss, self.figures.saturated = _mean(losses), _mean(saturated)

    def _penalised(self, penalty: Penalty) -> Tensor:
        if self._held is None:  # once a round, not once a batch
            arrays = self.received.arrays.items()
            self._held = {name: torch.from_numpy(np.array(v)).to(self.device) for name, v in arrays}
        value: Tensor = penalty(dict(self.model.named_parameters()), self._held)
        return value

    def _seed(self, purpose: str) -> int:
        """One stream a run, client, round and purpose: a round that is run again draws the same."""
        text = f"{self.moment.seed}/{self.shard.name}/{self.moment.round}/{purpose}".encode()
        if not self.moment.draws:
            return zlib.crc32(text)
        return int.from_bytes(hmac.digest(self.moment.draws, text, hashlib.sha256)[:8])


def _mean(values: list[Tensor]) -> float:
    return float(torch.stack(values).mean())


def _more_active(interactions: sparse.csr_array) -> Tensor:
    """1 for the half of the users with the most training items, else 0, (M,). Of an odd number it has one more."""
    order = np.argsort(np.diff(interactions.indptr), kind="stable")
    group = np.zeros(len(order), dtype=np.int64)
    group[order[len(order) // 2 :]] = 1
    return torch.from_numpy(group)
