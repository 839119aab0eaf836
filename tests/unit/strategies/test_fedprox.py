"""FedProx is refused where its penalty could have no effect."""

from __future__ import annotations

import pytest

from shared.errors import SettingsError
from shared.method.node_settings import NodeSettings
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy

NODES = NodeSettings(features=5, classes=2)


def test_a_round_of_one_step_on_all_nodes_is_refused_because_it_is_fedavg() -> None:
    one = MethodSettings(model="unifilter", nodes=NODES)
    with pytest.raises(SettingsError, match=r"^local_epochs: expected 2 or more .* one step is fedavg's, got 1$"):
        build_strategy("fedprox", one)
    assert build_strategy("fedprox", one.model_copy(update={"local_epochs": 2})).name == "fedprox"
    assert build_strategy("fedprox", MethodSettings()).name == "fedprox"
