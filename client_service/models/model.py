"""Model: an encoder that embeds users and items, and a head that scores them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from client_service.models.encoder import Encoder, Nodes
from client_service.models.initial_filter import Start
from client_service.models.ranker import Predictor, Ranker, Rows, Side
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum


@dataclass(frozen=True)
class Pooled:
    """One embedding for each user or item (R, q), with scale and bias: see Nodes."""

    embedding: Tensor
    scale: Tensor
    bias: Tensor | None = None


class Head(nn.Module, ABC):
    """Part of a model that computes scores from pooled embeddings.

    residual: is there a base path beside the MLPs, or no MLP at all?
    """

    residual: bool

    @abstractmethod
    def pool_users(self, users: Nodes) -> Pooled:
        """Pools the layers of each user to one embedding."""

    @abstractmethod
    def pool_items(self, items: Nodes) -> Pooled:
        """Pools the layers of each item to one embedding."""

    @abstractmethod
    def score(self, users: Pooled, items: Pooled) -> Tensor:
        """Computes f of each user row with the item row beside it.

        (B, q) and (B, q) to (B,).
        """

    @abstractmethod
    def score_all(self, users: Pooled, items: Pooled) -> Tensor:
        """Computes f of every user row with every item row.

        (B, q) and (n, q) to (B, n).
        """

    @abstractmethod
    def user_side(self, users: Pooled) -> Side:
        """Returns frozen users, as a Ranker needs them."""

    @abstractmethod
    def item_side(self, items: Pooled) -> Side:
        """Returns frozen items, as a Ranker needs them."""

    @abstractmethod
    def predictor(self) -> Predictor:
        """Returns the frozen predictive MLP."""


class TwoLayers(nn.Module):
    """MLP with one hidden layer, the form of both MLPs.

    output(tanh(hidden(x))), (B, in) to (B, out).
    """

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(inputs, width)
        self.output = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.output(torch.tanh(self.hidden(x)))
        return result


class PooledMLPs(Head):
    """Head of pooling MLP, predictive MLP and, where `residual`, a base path.

    alpha: alpha_0, the start of that weight.
    """

    alpha_start: Tensor
    log_alpha: nn.Parameter | None

    def __init__(self, method: MethodSettings, *, alpha: float | None = None, residual: bool = False) -> None:
        super().__init__()
        self.width, self.residual = method.width, residual
        start = torch.tensor(1.0 if alpha is None else alpha, dtype=torch.get_default_dtype())
        self.register_buffer("alpha_start", start, persistent=False)
        self.register_parameter("log_alpha", None if alpha is None else nn.Parameter(torch.zeros(())))
        self.pooling = TwoLayers((method.layers + 1) * self.width, self.width, self.width)
        self.predictive = TwoLayers(3 * self.width, self.width, 1)

    @property
    def alpha(self) -> Tensor:
        """Weight of the base path, alpha_0 exp(a)."""
        return self.alpha_start if self.log_alpha is None else self.alpha_start * torch.exp(self.log_alpha)

    def pool(self, layers: list[Tensor]) -> Tensor:
        """Computes the pooled embedding (Eq. 4), (B, q).

        It is the layers' mean plus the MLP of their d lowest frequencies.
        """
        # Paper: the MLP alone; here: a residual path beside it, because only so can training start at the filter.
        pooled: Tensor = self.pooling(torch.cat([layer[:, : self.width] for layer in layers], dim=1))
        if not self.residual:
            return pooled
        return torch.stack(layers).mean(0) + nn.functional.pad(pooled, (0, layers[0].shape[1] - self.width))

    def pool_users(self, users: Nodes) -> Pooled:
        return Pooled(self.pool(users.layers), users.scale)

    def pool_items(self, items: Nodes) -> Pooled:
        return Pooled(self.pool(items.layers), items.scale)

    def score(self, users: Pooled, items: Pooled) -> Tensor:
        """Computes f (Eq. 5) of each user row with the item row beside it.

        It is the value before tanh.
        """
        u, v = users.embedding[:, : self.width], items.embedding[:, : self.width]
        predicted: Tensor = self.predictive(torch.cat([u, v, u * v], dim=1))[:, 0]
        return predicted + self.base(users, items) if self.residual else predicted

    def base(self, users: Pooled, items: Pooled) -> Tensor:
        """Computes the base path's part of f for pairs of rows, (B,)."""
        return self.alpha * (users.embedding * items.embedding).sum(1) * users.scale * items.scale

    def score_all(self, users: Pooled, items: Pooled) -> Tensor:
        """Computes f of every user row with every item row.

        The first layer is split into its u, v and u * v parts. W_u u + W (u * v) is written (W_u + W diag v) u: one
        GEMM with the user rows, whose bias is the v part, instead of a (B, n, 3 d) input.
        """
        u, v = users.embedding[:, : self.width], items.embedding[:, : self.width]
        on_u, on_v, on_both = self.predictive.hidden.weight.chunk(3, dim=1)
        joint = (v[:, None, :] * on_both + on_u).reshape(-1, self.width)  # (n d, d)
        bias = (v @ on_v.T + self.predictive.hidden.bias).reshape(-1)  # (n d,)
        hidden = torch.tanh(torch.addmm(bias, u, joint.T)).view(len(u), len(v), self.width)
        predicted: Tensor = self.predictive.output(hidden)[..., 0]
        return predicted + self.base_all(users, items) if self.residual else predicted

    def base_all(self, users: Pooled, items: Pooled) -> Tensor:
        """Computes the base path's part of f for all pairs, (B, n).

        It is one GEMM.
        """
        return self.alpha * (users.embedding @ items.embedding.T) * users.scale[:, None] * items.scale

    def mlp_lower_bound(self) -> Tensor:
        """Computes a lower bound of the predictive MLP's part of f.

        |tanh| <= 1 bounds it by its output weights.
        """
        return self.predictive.output.bias[0] - self.predictive.output.weight.abs().sum()

    def user_side(self, users: Pooled) -> Side:
        on_u, _, _ = self.predictive.hidden.weight.chunk(3, dim=1)
        narrow = users.embedding[:, : self.width]
        return _side(users.embedding * users.scale[:, None] * self.alpha, narrow, narrow @ on_u.T)

    def item_side(self, items: Pooled) -> Side:
        _, on_v, _ = self.predictive.hidden.weight.chunk(3, dim=1)
        narrow = items.embedding[:, : self.width]
        return _side(
            items.embedding * items.scale[:, None], narrow, narrow @ on_v.T + self.predictive.hidden.bias
        ).column_major()

    def predictor(self) -> Predictor:
        _, _, on_both = self.predictive.hidden.weight.chunk(3, dim=1)
        output = self.predictive.output
        return Predictor(to_array(on_both), to_array(output.weight)[0], to_array(output.bias)[0])


class PreferenceMLPs(PooledMLPs):
    """Both MLPs, with a private preference (q,) added to each pooled user (FedSSP)."""

    def __init__(self, method: MethodSettings, *, alpha: float, residual: bool, embedding_width: int) -> None:
        super().__init__(method, alpha=alpha, residual=residual)
        self.preference = nn.Parameter(torch.zeros(embedding_width))

    def pool_users(self, users: Nodes) -> Pooled:
        pooled = super().pool_users(users)
        return replace(pooled, embedding=pooled.embedding + self.preference)


class DotProduct(Head):
    """Head without trained parameters: <u, v>.

    In training a user's bias is added, which moves all of its items alike.
    """

    residual = True

    def pool_users(self, users: Nodes) -> Pooled:
        return Pooled(users.layers[-1], users.scale, users.bias)

    def pool_items(self, items: Nodes) -> Pooled:
        return Pooled(items.layers[-1], items.scale)

    def score(self, users: Pooled, items: Pooled) -> Tensor:
        products = (users.embedding * items.embedding).sum(1)
        return products if users.bias is None else products + users.bias

    def score_all(self, users: Pooled, items: Pooled) -> Tensor:
        products = users.embedding @ items.embedding.T
        return products if users.bias is None else products + users.bias[:, None]

    def user_side(self, users: Pooled) -> Side:
        return embedding_side(users.embedding)

    def item_side(self, items: Pooled) -> Side:
        return embedding_side(items.embedding).column_major()

    def predictor(self) -> Predictor:
        """Returns an MLP that adds nothing."""
        nothing = np.zeros(0, dtype=np.float32)
        return Predictor(np.zeros((0, 0), dtype=np.float32), nothing, np.float32(0.0))


def to_array(tensor: Tensor) -> Float32:
    """Copies a tensor into an array.

    A parameter's own memory would go on changing under a frozen model.
    """
    values: Float32 = np.array(tensor.detach().cpu().numpy(), order="C")
    return values


def _side(embedding: Tensor, narrow: Tensor, hidden: Tensor) -> Side:
    return Side(to_array(embedding), to_array(narrow), to_array(hidden))


def embedding_side(embedding: Tensor) -> Side:
    """Makes a side of a score that is a dot product."""
    nothing = np.zeros((len(embedding), 0), dtype=np.float32)
    return Side(to_array(embedding), nothing, nothing)


PARTS = {"encoder", "head", "response"}  # modules that parameters' names in checkpoints and messages leave out


@dataclass(frozen=True)
class ModelInputs:
    """Inputs from which an encoder file builds a model.

    interactions (M, N): the training graph; places (N,): each item's row in the federation's catalogue, None if
    there is none; start: the filter at which an encoder with one begins; text (N, d): start of the item vectors from
    their texts, None if they begin at random.
    """

    spectrum: Spectrum
    interactions: sparse.csr_array
    start: Start | None
    places: NDArray[np.int64] | None
    method: MethodSettings
    text: Float32 | None = None


class Model(nn.Module):
    """Recommendation model: a score f for each of M users and N items.

    Higher is better.
    """

    def __init__(self, encoder: Encoder, head: Head) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head
        self.users, self.items = encoder.users, encoder.items

    @property
    def device(self) -> torch.device:
        """Device of the model's parameters."""
        return self.encoder.embedding.device

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields every parameter with its name within the encoder or the head."""
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            yield ".".join(word for word in name.split(".") if word not in PARTS), parameter

    def scores(self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool) -> tuple[Tensor, Tensor]:
        """Computes f of each user with its item and with every negative.

        Returns (B,) and (B, n). users, items: (B,). negatives: (n,). leave_one_out: score the positives as if their own
        edges were not in the graph, where the encoder can leave them out.
        """
        left, right, others = self.encoder.batch(users, items, negatives, leave_one_out=leave_one_out)
        u, v = self.head.pool_users(left), self.head.pool_items(right)
        return self.head.score(u, v), self.head.score_all(u, self.head.pool_items(others))

    def pooled(self) -> tuple[Pooled, Pooled]:
        """Returns the pooled embeddings of all users and all items."""
        users, items = self.encoder.all_nodes()
        return self.head.pool_users(users), self.head.pool_items(items)

    @torch.no_grad()
    def freeze(self) -> Ranker:
        """Copies the model as it is now into arrays that no longer change."""
        users, items = self.pooled()
        head = self.head
        return Ranker(head.user_side(users), head.item_side(items), head.predictor(), head.residual)

    @torch.no_grad()
    def fold_in(self, basket: Rows) -> Side:
        """Computes the user side of one user outside the graph.

        basket: rows of the user's items, (b,).
        """
        nodes = self.encoder.basket(torch.from_numpy(basket).to(self.device))
        return self.head.user_side(self.head.pool_users(nodes))


Builder = Callable[[ModelInputs], Model]


def build_model(name: str, given: ModelInputs) -> Model:
    """Builds the model of encoders/<name>.py; `name` is one of EXCHANGES, as in settings and strategies."""
    build: Builder = import_module(f"client_service.models.encoders.{name}").build
    return build(given)
