"""Registry of strategies by name.

A new algorithm is one file here, a line below, its name in the options, and a test.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import TRAINING, Declaration, Part
from shared.method.settings import MethodSettings
from shared.strategies.adaptive import fedadam, fedga, fedyogi
from shared.strategies.f2mf import f2mf
from shared.strategies.fedavg import fedavg
from shared.strategies.fedgsp import fedgsp
from shared.strategies.fedhgnn import fedhgnn
from shared.strategies.fedmf import fedmf
from shared.strategies.fedper import fedper
from shared.strategies.fedpergnn import fedpergnn
from shared.strategies.fedprox import fedprox
from shared.strategies.fedpub import fedpub
from shared.strategies.fedrap import fedrap
from shared.strategies.fedsgd import fedsgd
from shared.strategies.fedssp import fedssp
from shared.strategies.fedutr import fedutr, fedutr_sar
from shared.strategies.local import local
from shared.strategies.lpsfed import lpsfed
from shared.strategies.pfedrec import pfedrec
from shared.strategies.robust_aggregation import aggregate_robustly
from shared.strategies.server_optimisers import add_server_optimiser
from shared.strategies.strategy import Scalar, Strategy, read_strategy_settings
from shared.strategies.sum_strategy import strategy_of_sum, sum_strategy
from shared.sums import find_part, find_sum, is_sum, list_allowed_sums

STRATEGIES: dict[str, Callable[[MethodSettings], Strategy]] = {
    "lpsfed": lpsfed,
    "fedavg": fedavg,
    "local": local,
    "fedprox": fedprox,
    "fedper": fedper,
    "fedpub": fedpub,
    "fedssp": fedssp,
    "fedmf": fedmf,
    "f2mf": f2mf,
    "pfedrec": pfedrec,
    "fedrap": fedrap,
    "fedpergnn": fedpergnn,
    "fedhgnn": fedhgnn,
    "fedutr": fedutr,
    "fedutr_sar": fedutr_sar,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fedga": fedga,
    "fedsgd": fedsgd,
    "fedgsp": fedgsp,
}


USUAL = MethodSettings()
SHARES_ITEMS = frozenset(name for name, build in STRATEGIES.items() if build(USUAL).shares_items(USUAL))
"""Their updates have a row for each item, and which rows move tells which items a silo has."""
SHARES_STATISTICS = frozenset(name for name, build in STRATEGIES.items() if build(USUAL).shard_statistics)
"""They send statistics of the shard beside what was trained, so that a silo's policy must name them."""


def registered_scalars() -> dict[str, Scalar]:
    """Returns every scalar that a strategy declares, with default settings."""
    return {name: scalar for build in STRATEGIES.values() for name, scalar in build(USUAL).scalars.items()}


def find_strategy(declaration: Declaration) -> Strategy:
    """Returns the strategy that a declaration names, with default settings.

    Which of its scalars are visible and which come back is the same with all settings. Raises ProtocolError for an
    unknown one.
    """
    if is_sum(declaration):
        return strategy_of_sum(list_allowed_sums(declaration.strategy)[0], USUAL)
    if declaration.strategy not in STRATEGIES:
        raise ProtocolError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {declaration.strategy!r}")
    return _build_usual(STRATEGIES[declaration.strategy])


@lru_cache(maxsize=64)
def _build_usual(build: Callable[[MethodSettings], Strategy]) -> Strategy:
    """Builds a strategy with default settings once: every message asks for it."""
    return build(USUAL)


def build_strategy(name: str, method: MethodSettings) -> Strategy:
    """Builds the named strategy with the run's settings.

    Raises SettingsError for an unknown name, or for settings that do not fit.
    """
    if name not in STRATEGIES:
        raise SettingsError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {name!r}")
    strategy = STRATEGIES[name](method)
    read_strategy_settings(type(strategy.settings), method)
    return add_server_optimiser(aggregate_robustly(strategy, method), method)


def strategy_of_part(part: Part, name: str, method: MethodSettings) -> Strategy:
    """Returns the strategy of a run of this part: the named one, or a sum.

    Raises SettingsError for a sum of another part.
    """
    if part == TRAINING:
        return build_strategy(name, method)
    if (found := find_part(method.basis)) != part:
        name = find_sum(method).name
        raise SettingsError(f"basis.kind: expected a sum of the part {part!r}, got {name!r} of {found!r}")
    return sum_strategy(method)
