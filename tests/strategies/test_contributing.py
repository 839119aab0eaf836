"""The algorithm that CONTRIBUTING shows in full works as it stands there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from shared.settings import MethodSettings
from shared.strategy import Parameters, Strategy, both_mlps

CONTRIBUTING = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")


class Recording:
    """A client that keeps the penalty it was given."""

    penalty: Any = None

    def load(self, received: Parameters) -> None:
        self.received = received

    def train(self, *, bias_aware: bool = False, penalty: Any = None, only: str = "") -> None:
        assert not bias_aware and only == ""
        self.penalty = penalty

    def arrays(self) -> dict[str, np.ndarray]:
        return {"pooling.w": np.ones(2, dtype=np.float32)}


def test_the_fedprox_of_the_guide_penalises_the_distance_to_what_was_received() -> None:
    block = re.search(r"```python\n(.*?)```", CONTRIBUTING, flags=re.S)
    assert block is not None
    names: dict[str, Any] = {"Parameters": Parameters, "Strategy": Strategy, "both_mlps": both_mlps}
    exec(textwrap.dedent(block.group(1)), names)
    fedprox: Strategy = names["fedprox"](MethodSettings())
    client = Recording()
    sent = fedprox.fit(client, Parameters({"pooling.w": np.zeros(2, dtype=np.float32)}))  # type: ignore[arg-type]
    assert fedprox.name == "fedprox" and set(sent.arrays) == {"pooling.w"}
    # 0.01 * ((3 - 1)^2 + (1 - 1)^2) = 0.04
    assert client.penalty({"pooling.w": np.array([3.0, 1.0])}, {"pooling.w": np.array([1.0, 1.0])}) == 0.04
