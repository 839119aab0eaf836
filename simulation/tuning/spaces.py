"""Search spaces: the settings of a strategy that a search may vary, with their bounds.

A strategy has the space of what it trains: models of interactions, tables of items, or models of sessions. It gets a
line in `OWN` when it uses more of the settings. Epochs and rounds are in no space: every strategy gets the same number
of trials, each with the same number of epochs.
"""

from __future__ import annotations

from collections.abc import Collection
from operator import attrgetter
from typing import Any

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from shared.errors import SettingsError
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES
from shared.strategies import build_strategy
from shared.strategies.agreement import choose_similarity_floor
from shared.strategies.server_optimisers import build_optimiser

Space = dict[str, BaseDistribution]
"""Distribution of each searched setting: a field of MethodSettings, or strategy.<name of the strategy's own>."""

COMMON: Space = {
    "learning_rate": FloatDistribution(1e-4, 1e-2, log=True),
    "mlp_learning_rate": FloatDistribution(1e-6, 1e-3, log=True),
    "temperature": FloatDistribution(0.05, 0.5, log=True),
    "negatives": CategoricalDistribution((8, 16, 32, 64)),
    "decay": CategoricalDistribution((0.0, 0.1, 1.0, 10.0)),
}

ITEM_TABLES: Space = {
    "learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
    "negatives": COMMON["negatives"],
}
"""Space of strategies whose clients share a table of items: no MLPs, no softmax, no start to be pulled back to."""

SESSIONS: Space = {
    "learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
    "batch_size": CategoricalDistribution((25, 50, 100, 200, 2048)),
    "sessions.weight_decay": FloatDistribution(1e-7, 1e-3, log=True),
}
"""Space of session models, with any strategy."""

NODES: Space = {
    "learning_rate": FloatDistribution(1e-4, 1e-1, log=True),
    "nodes.tau": CategoricalDistribution((1.0, 0.975, 0.9, 0.7, 0.5)),
    "nodes.dropout": FloatDistribution(0.0, 0.6),
}
"""Space of networks of nodes. tau 1 is in it: bases at an angle blow up rare columns."""

SERVER_RATE: Space = {"server_step.rate": FloatDistribution(1e-4, 1.0, log=True)}
"""Space of strategies with a server optimiser, beside their other settings."""

SERVER_TAU: Space = {"server_step.tau": FloatDistribution(1e-6, 1e-1, log=True)}
"""Where the step is divided: it is about eta m / tau where changes are small."""

OWN: dict[str, Space] = {
    "lpsfed": {"margin_strength": FloatDistribution(0.0, 1.0), "similarity_floor": FloatDistribution(0.0, 1.0)},
    "fedprox": {"strategy.mu": FloatDistribution(1e-3, 1.0, log=True)},
    "fedgsp": {
        "strategy.weight_floor": FloatDistribution(0.0, 1.0),
        "strategy.sharpness": FloatDistribution(0.1, 10.0, log=True),
        "strategy.least_own": FloatDistribution(0.0, 1.0),
    },
    "f2mf": {"strategy.strength": FloatDistribution(0.0, 1.0)},
    "pfedrec": {"strategy.item_rate": FloatDistribution(0.1, 1e3, log=True)},
    "fedrap": {
        "strategy.distance": FloatDistribution(1e-3, 1.0, log=True),
        "strategy.sparsity": FloatDistribution(1e-3, 1.0, log=True),
    },
}


def search_space(strategy: str, base: MethodSettings, fixed: Collection[str] = ()) -> Space:
    """Returns the space of `strategy` with the settings `base`, without those in `fixed`.

    Raises SettingsError for an unknown strategy, or when nothing is left.
    """
    whole = _trained_space(strategy, base) | OWN.get(strategy, {}) | _server_space(strategy, base)
    idle = {"temperature"} if base.loss == "bpr" else set()  # BPR knows no temperature
    space = {n: values for n, values in whole.items() if n not in idle and n not in fixed}
    if not space:
        raise SettingsError(f"tune: expected a setting of {strategy!r} that is not fixed, got all of them fixed")
    return space


def _trained_space(strategy: str, base: MethodSettings) -> Space:
    """Returns the space of the models that the clients train."""
    built = build_strategy(strategy, base)
    of_task = {"sessions": SESSIONS, "nodes": NODES}
    if (task := EXCHANGES[built.model or base.model].task) in of_task:
        return of_task[task]
    return ITEM_TABLES if built.shares_items(base) else COMMON


def _server_space(strategy: str, base: MethodSettings) -> Space:
    """Returns the space of the server's optimiser; empty without one.

    Momentum has no tau, as it divides by nothing.
    """
    server = build_strategy(strategy, base).server
    return {} if server == "none" else SERVER_RATE if server == "momentum" else SERVER_RATE | SERVER_TAU


def initial_value(name: str, strategy: str, base: MethodSettings) -> Any:
    """Returns the value of a searched setting before the search.

    Trials are no secure runs.
    """
    base = choose_similarity_floor(base, secure=False)
    group, _, field = name.rpartition(".")
    built = build_strategy(strategy, base)
    if group == "server_step":
        optimiser = build_optimiser(built.server, base.server_step, resistant=False)
        return getattr(optimiser, field)
    return getattr(built.settings if group == "strategy" else attrgetter(group)(base) if group else base, field)
