"""FedSSP: the spectral kernels' MLP is averaged, the preference is private.

Tan, Wan, Huang, Ye. FedSSP: Federated Graph Learning with Spectral Knowledge and Personalized Preference. NeurIPS
2024.
"""

from __future__ import annotations

from functools import partial

from shared.method.settings import MethodSettings
from shared.strategies.strategy import Strategy, fit_plain


def is_spectral(name: str) -> bool:
    """Tells whether a tensor is of the MLP from an eigenvalue to its kernels."""
    return name.startswith("kernel.")


def fedssp(method: MethodSettings) -> Strategy:
    """Builds FedSSP: the kernel MLP is averaged.

    Embeddings, both other MLPs and the preference are private; no scalar leaves.
    """
    # Paper: each client's running mean of its representations is sent too and pulled to the mean over the clients;
    # here: it is not, because it would be a statistic of the users that leaves the silo, and because coordinate j of a
    # representation is a client's own j-th frequency here: the mean over clients compares nothing with nothing.
    del method
    return Strategy("fedssp", shared=is_spectral, fit=partial(fit_plain, sent=is_spectral), model="frequency")
