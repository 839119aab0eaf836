"""FedPer: base layers are averaged, personalisation layers never leave a client.

Arivazhagan, Aggarwal, Singh, Choudhary. Federated Learning with Personalization Layers. 2019. arXiv 1912.00818.
"""

from __future__ import annotations

from functools import partial

from shared.method.settings import MethodSettings
from shared.strategies.strategy import Strategy, all_exchanged, fit_plain


def is_base_layer(name: str) -> bool:
    """Tells whether a tensor is outside the predictive MLP.

    Of an encoder these are the pooling MLP's, which stands before it; or a table of items.
    """
    # Paper: all layers in a row on one input; here: of the two MLPs the first is the base, because embeddings and
    # kernels before it belong to one client's graph and can have no mean.
    return not name.startswith("predictive.")


def fedper(method: MethodSettings) -> Strategy:
    """Builds FedPer: the predictive MLP is private, the layers before it are averaged.

    No scalar leaves.
    """
    exchanged = all_exchanged(method)
    fit = partial(fit_plain, sent=is_base_layer)
    return Strategy("fedper", shared=lambda name: exchanged(name) and is_base_layer(name), fit=fit)
