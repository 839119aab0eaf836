"""FedSSP: the function from eigenvalue to kernel is shared, and nothing else."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np

from shared.method.exchange import encoded_width, kernel_specification
from shared.method.exchanged import Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.strategies.fedssp import fedssp
from shared.strategies.local_client import PLAIN, LocalClient

METHOD = MethodSettings(width=6, layers=2)
FEDSSP = fedssp(METHOD)
NAMES = ["kernel.hidden.bias", "kernel.hidden.weight", "kernel.output.bias", "kernel.output.weight"]


def test_the_kernel_mlp_has_one_output_a_convolution_and_takes_an_encoded_eigenvalue() -> None:
    # Itself, three sines and three cosines.
    assert [(spec.name, spec.shape) for spec in kernel_specification(METHOD)] == list(
        zip(NAMES, [(6,), (6, 7), (2,), (2, 6)], strict=True)
    )
    assert [encoded_width(width) for width in (1, 2, 3, 4, 64)] == [3, 3, 3, 5, 65]


def test_no_statistic_of_representations_leaves_unlike_in_the_paper() -> None:
    declared = FEDSSP.declaration(METHOD)
    assert ([spec.name for spec in declared.tensors], declared.scalars) == (NAMES, ())
    assert not any(map(FEDSSP.shared, ("preference", "kernels", "embedding", "pooling.hidden.weight")))


def test_a_client_trains_everything_and_sends_the_kernel_mlp() -> None:
    client, one = Mock(spec=LocalClient), np.ones(1, dtype=np.float32)
    client.arrays.return_value = dict.fromkeys((*NAMES, "pooling.hidden.bias", "predictive.output.bias"), one)
    received = Parameters({})
    sent = FEDSSP.fit(client, received)
    assert [call[0] for call in client.method_calls] == ["load", "train", "arrays"]
    client.load.assert_called_once_with(received)
    client.train.assert_called_once_with(PLAIN)
    assert sorted(sent.arrays) == NAMES and sent.scalars == {}


def test_everybody_gets_the_mean_of_the_functions() -> None:
    updates = [Update(name, {NAMES[0]: np.array([v], dtype=np.float32)}, {}) for name, v in (("a", 1.0), ("b", 3.0))]
    state = FEDSSP.aggregate(State({NAMES[0]: np.zeros(1, dtype=np.float32)}), updates)
    assert all(FEDSSP.personalise(state, one).arrays[NAMES[0]].tolist() == [2.0] for one in (*updates, None))
