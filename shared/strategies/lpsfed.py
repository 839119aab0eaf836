"""LPSFed: both MLPs are averaged, and each client gets a share of the mean.

The share is larger the more the client's spectrum resembles the neutral one.

Low-pass Personalized Subgraph Federated Recommendation. ICLR 2026. OpenReview SSd3GENRAU.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from shared.errors import SettingsError
from shared.method.divergence import greatest_divergence
from shared.method.parameters import Parameters, Scalars
from shared.method.settings import MethodSettings, greatest_margin
from shared.method.tensors import EXCHANGES, ROUNDING, Range
from shared.strategies.aggregation import Mixing
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.strategy import OwnSettings, Scalar, Strategy, is_mlp, read_strategy_settings, share_nothing

MARGIN, DIVERGENCE = "margin", "rho"  # M (Eq. 10) and rho (Eq. 11), as they leave a client
SIMILARITY = "rhobar"  # Eq. 12, the scalar that the server gives each client


class LPSFedSettings(OwnSettings):
    """Settings of LPSFed.

    train: false leaves the closed forms as they begin, which takes seconds; both MLPs then leave as they came. send:
    false: no network leaves, and there is nothing to train; each silo makes its model of the federation's sums.
    """

    train: bool = True
    send: bool = True


def fit_bias_aware(client: LocalClient, received: Parameters, *, train: bool = True) -> Parameters:
    """Trains with the refined margin, and sends both MLPs, rho and M (Algorithm 3)."""
    client.load(received)
    if train:
        client.train(Objective(bias_aware=True))
    (margin,), rho = client.measure("mean_margin"), client.measure("divergence")
    return Parameters(client.arrays(), {MARGIN: margin, **({DIVERGENCE: rho[0]} if rho else {})})


def similarities(latest: Mapping[str, Scalars], floor: float = 0.0) -> dict[str, float]:
    """Computes rhobar (Eq. 12) of every client from the latest rho of each.

    1 for the nearest to the anchor, 0 for the farthest. One client, or equal rho: 1. A client without a rho counts as
    near: 1.
    """
    rho = {client: scalars[DIVERGENCE] for client, scalars in latest.items() if DIVERGENCE in scalars}
    least, most = min(rho.values(), default=0.0), max(rho.values(), default=0.0)
    spread = most - least
    near = {client: 1.0 if spread == 0.0 else 1.0 - (value - least) / spread for client, value in rho.items()}
    # Paper: the farthest client gets 0 and never learns from others; here: `floor` is the least, because min-max
    # always sends somebody there, however alike the clients are. Its default, 0, is the paper's.
    return {client: max(floor, near.get(client, 1.0)) for client in latest}


class RecentSimilarities:
    """Similarities of the round that was asked for last.

    Each client asks for its own.
    """

    def __init__(self) -> None:
        self._held: tuple[Mapping[str, Scalars], float, dict[str, float]] | None = None

    def similarities(self, latest: Mapping[str, Scalars], floor: float) -> dict[str, float]:
        """Returns `similarities` of these scalars, which must not change afterwards."""
        held = self._held
        if held is None or held[0] is not latest or held[1] != floor:
            held = self._held = latest, floor, similarities(latest, floor)
        return held[2]


RECENT = RecentSimilarities()


def mix_by_similarity(server_scalars: Scalars, mean: Parameters, own: Parameters) -> Parameters:
    """Mixes both MLPs and the margin by rhobar (Eq. 14).

    rhobar * mean + (1 - rhobar) * own.
    """
    near = server_scalars[SIMILARITY]
    arrays = {name: near * value + (1.0 - near) * own.arrays[name] for name, value in mean.arrays.items()}
    margin = own.scalars.get(MARGIN, 0.0)
    return Parameters(arrays, {name: near * value + (1.0 - near) * margin for name, value in mean.scalars.items()})


def make_mixing(floor: float) -> Mixing:
    """Makes the mixing of Eq. 12 and 14, with `floor` as the least rhobar."""

    def scalars_of(latest: Mapping[str, Scalars], client: str) -> Scalars:
        return {SIMILARITY: RECENT.similarities(latest, floor).get(client, 1.0)}

    return Mixing(
        {SIMILARITY: Range(floor, 1.0)}, scalars_of, mix_by_similarity, mean_alone={SIMILARITY: 1.0}, least_share=floor
    )


LARGEST_WEIGHT = 1e3  # largest weight of a trained kernel, which begins at 1; a larger one is not of a trained model


def declared_scalars(method: MethodSettings) -> dict[str, Scalar]:
    """Declares the scalars M and rho with their ranges.

    M: a mean of margins (Eq. 8, 10), so from 0 to the greatest that their reading gives, which is gamma pi for Eq. 8
    as printed; rho: from 0 to its greatest value (Eq. 11). Each end is a rounding wider.
    """
    largest = 1.0 if method.signal == "eigenvalues" else LARGEST_WEIGHT
    margin = Range(-ROUNDING, greatest_margin(method.margin_reading, method.margin_strength) + ROUNDING)
    rho = Range(0.0, greatest_divergence(method.cutoff, largest) + ROUNDING)
    return {
        MARGIN: Scalar(margin, returned=True, released=Range(0.0, 0.32)),
        DIVERGENCE: Scalar(
            rho,
            visible=True,
            released=Range(0.0, 0.02),
            compares_spectra=True,
            steady=method.signal == "eigenvalues",
        ),
    }


def lpsfed(method: MethodSettings) -> Strategy:
    """Builds LPSFed; raises SettingsError for a model without MLPs.

    `similarity_floor` = 1 is its "w/o per" ablation.
    """
    exchange = EXCHANGES[method.model]
    if exchange.task != "items" or not any(is_mlp(name) for name in exchange.names):
        raise SettingsError(f"model: expected an encoder beneath both MLPs with 'lpsfed', got {method.model!r}")
    settings = read_strategy_settings(LPSFedSettings, method)
    if not settings.send:
        if settings.train:
            raise SettingsError("strategy.train: expected false with strategy.send = false, got true")
        return Strategy("lpsfed", shared=share_nothing, settings=settings, enough_rounds=1, sums_alone=True)
    return Strategy(
        "lpsfed",
        shared=is_mlp,
        scalars=declared_scalars(method),
        fit=partial(fit_bias_aware, train=settings.train),
        settings=settings,
        enough_rounds=None if settings.train else 1,
        mixing=make_mixing(method.similarity_floor or 0.0),
    )
