"""What clients report of the sizes of their changes tells no number of a single silo.

Who: anybody who sees the sums of a secure round with `server_step.magnitudes = reported`. Before, each silo added |x|
of each number beside x. Wherever the sum of x is as large as the sum of |x|, all silos have moved it one way; where one
silo alone has moved it, its change lies bare. With three silos, 75 % of the moved numbers did.
"""

from __future__ import annotations

import numpy as np
import pytest

from shared.errors import SettingsError
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, method_settings
from shared.protocol.lengths import least_update
from shared.strategies import build_strategy
from shared.strategies.agreement import declare_federation

STRATEGIES = ("fedga", "fedadam", "fedyogi", "lpsfed")


def reporting(name: str) -> tuple[MethodSettings, Declaration]:
    server = {} if name in ("fedga", "fedadam", "fedyogi") else {"server": "yogi"}
    method = method_settings(width=4, layers=1, catalogue=9, **{"server_step.magnitudes": "reported"}, **server)
    return method, declare_federation(build_strategy(name, method), method, secure=True)


@pytest.mark.parametrize("name", STRATEGIES)
def test_all_that_is_reported_of_an_update_is_one_number(name: str) -> None:
    method, declaration = reporting(name)
    assert [spec.shape for spec in declaration.reports] == [(1,)]
    plain = declaration.model_copy(update={"reports": ()})
    assert least_update(declaration) - least_update(plain) == 8  # masked
    with pytest.raises(SettingsError, match="expected computed"):
        declare_federation(build_strategy(name, method), method, secure=False)


def test_the_sums_of_three_silos_leave_no_change_bare() -> None:
    """The attack as it was: of three silos, each moves a part of the numbers that the others leave alone."""
    method, declaration = reporting("fedga")
    strategy = build_strategy("fedga", method)
    assert strategy.report is not None
    base = strategy.start(method, 0)
    draws = np.random.default_rng(3)
    updates = []
    for _ in range(3):
        moved = {
            k: (v + draws.normal(size=v.shape) * (draws.random(v.shape) < 0.4)).astype("f4") for k, v in base.items()
        }
        updates.append(strategy.report(Parameters(moved), base))
    sums = {key: sum(one.arrays[key].astype(np.float64) for one in updates) for key in updates[0].arrays}
    reported = [key for key in sums if key not in base]
    assert reported == [spec.name for spec in declaration.reports]
    for key, start in base.items():
        changes = np.abs(sums[key] - 3.0 * start)
        assert not any(sums[name].shape == changes.shape and changes.size > 1 for name in reported)
    sizes = [float(one.arrays[reported[0]][0]) for one in updates]
    moved_sums = np.concatenate([(sums[key] - 3.0 * base[key]).ravel() for key in base])
    assert sum(sizes) > 1.05 * np.sqrt(np.mean(moved_sums**2))  # nor are the three updates known to be parallel
