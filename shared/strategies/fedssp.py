"""FedSSP: the spectral kernels are one shared function of the eigenvalue; all the rest is a client's preference.

Tan, Wan, Huang, Ye. FedSSP: Federated Graph Learning with Spectral Knowledge and Personalized Preference. NeurIPS 2024.
"""

from __future__ import annotations

from shared.method.declaration import TensorSpec
from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.strategy import LocalClient, Strategy


def spectral(name: str) -> bool:
    """The MLP from an eigenvalue to its kernels."""
    return name.startswith("kernel.")


def encoded_width(width: int) -> int:
    """Numbers that an eigenvalue is encoded as: itself, and the sine and cosine at each of width // 2 frequencies."""
    return 1 + 2 * max(1, width // 2)


def kernel_specification(method: MethodSettings) -> tuple[TensorSpec, ...]:
    """The kernel MLP, sorted by name: encoded eigenvalue -> d -> L, one output for each convolution."""
    shapes = {"hidden": (method.width, encoded_width(method.width)), "output": (method.layers, method.width)}
    weights = [TensorSpec(name=f"kernel.{name}.weight", shape=shape) for name, shape in shapes.items()]
    biases = [TensorSpec(name=f"kernel.{name}.bias", shape=shape[:1]) for name, shape in shapes.items()]
    return tuple(sorted(weights + biases, key=lambda spec: spec.name))


def fit_spectral(client: LocalClient, received: Parameters) -> Parameters:
    """Train everything together and send the kernel MLP.

    # Paper: each client's running mean of its representations is sent too and pulled to the mean over the clients;
    # here: it is not, because it would be a statistic of the users that leaves the silo, and because coordinate j of a
    # representation is a client's own j-th frequency here: the mean over clients compares nothing with nothing.
    """
    client.load(received)
    client.train()
    return Parameters({name: value for name, value in client.arrays().items() if spectral(name)})


def fedssp(method: MethodSettings) -> Strategy:
    """The kernel MLP is averaged; embeddings, both MLPs and the preference are private; no scalar leaves."""
    del method
    return Strategy("fedssp", shared=spectral, fit=fit_spectral, model="frequency", specification=kernel_specification)
