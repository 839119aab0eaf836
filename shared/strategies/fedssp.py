"""FedSSP: the spectral kernels are one shared function of the eigenvalue; all the rest is a client's preference.

Tan, Wan, Huang, Ye. FedSSP: Federated Graph Learning with Spectral Knowledge and Personalized Preference. NeurIPS 2024.
"""

from __future__ import annotations

from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient
from shared.strategies.strategy import Strategy


def spectral(name: str) -> bool:
    """The MLP from an eigenvalue to its kernels."""
    return name.startswith("kernel.")


def fit_spectral(client: LocalClient, received: Parameters) -> Parameters:
    """Train everything together and send the kernel MLP."""
    # Paper: each client's running mean of its representations is sent too and pulled to the mean over the clients;
    # here: it is not, because it would be a statistic of the users that leaves the silo, and because coordinate j of a
    # representation is a client's own j-th frequency here: the mean over clients compares nothing with nothing.
    client.load(received)
    client.train()
    return Parameters({name: value for name, value in client.arrays().items() if spectral(name)})


def fedssp(method: MethodSettings) -> Strategy:
    """The kernel MLP is averaged; embeddings, both MLPs and the preference are private; no scalar leaves."""
    del method
    return Strategy("fedssp", shared=spectral, fit=fit_spectral, model="frequency")
