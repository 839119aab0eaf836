"""Terms on which a federation aggregates, in the open or securely, computed by both sides."""

from __future__ import annotations

from shared.errors import SettingsError
from shared.method.declaration import Declaration
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES
from shared.strategies.server_optimisers import magnitudes_for
from shared.strategies.strategy import Strategy, share_nothing
from shared.strategies.sum_strategy import declare_sums

SINGLE = ("clip_factor", "quarantine_factor")  # 0 turns each off


def declare_federation(strategy: Strategy, method: MethodSettings, *, secure: bool) -> Declaration:
    """Declares all that a federation's clients may send, in training and in sums.

    Raises SettingsError for settings that cannot be secure, and for a model without tensors to share.
    """
    declaration, sums = strategy.declaration(method), declare_sums(method)
    if not declaration.tensors and strategy.shared is not share_nothing:
        model = strategy.model or method.model
        words = f"expected a model with tensors, which the clients of {strategy.name!r} share, got {model!r}"
        raise SettingsError(f"model: {words}, which has none: choose another model, or the strategy local")
    if strategy.report is not None and not secure:
        words = "expected computed, because the aggregator sees the updates"
        raise SettingsError(f"server_step.magnitudes: {words}, got reported in a federation that is not secure")
    if secure:
        declaration = secure_declaration(declaration, strategy, method)
        sums = {part: one.model_copy(update={"secure": True}) for part, one in sums.items()}
    return declaration.model_copy(update={"sums": sums})


def choose_similarity_floor(method: MethodSettings, *, secure: bool) -> MethodSettings:
    """Sets `similarity_floor` where it is not set: 1 if secure, else 0.

    With less than 1 in a secure federation, clients go on from different parameters, and an aggregator that lies
    about the mean tells one client's update from a sum (docs/privacy.md).
    """
    if method.similarity_floor is not None:
        return method
    return method.model_copy(update={"similarity_floor": 1.0 if secure else 0.0})


def secure_declaration(declaration: Declaration, strategy: Strategy, method: MethodSettings) -> Declaration:
    """Makes a declaration secure; raises SettingsError if single updates are needed."""
    if strategy.server != "none" and magnitudes_for(strategy.server, method) == "computed":
        words = "expected server_step.magnitudes = reported, where each client masks the size of its update's change"
        raise SettingsError(f"secure: {words}, or off; got computed")
    if strategy.needs_single_updates and strategy.shard_statistics:
        needed = " and ".join(sorted(strategy.shard_statistics))
        words = f"{strategy.name!r}, which gives each client a mean of its own, by single {needed}"
        raise SettingsError(f"secure: expected a strategy that needs the mean alone, got {words}")
    if strategy.needs_single_updates or not (declaration.tensors or strategy.sums_alone):
        raise SettingsError(f"secure: expected a strategy that needs the mean alone, got {strategy.name!r}")
    require_mean(method)
    return declaration.model_copy(update={"secure": True})


def find_task(strategy: Strategy, method: MethodSettings) -> str:
    """Returns the task whose data the strategy's model learns from."""
    return EXCHANGES[strategy.model or method.model].task


def require_task(strategy: Strategy, method: MethodSettings, task: str) -> None:
    """Raises SettingsError for a model that learns from another task's data."""
    model = strategy.model or method.model
    if (needed := find_task(strategy, method)) != task:
        raise SettingsError(f"task: expected {needed!r}, whose data the model {model!r} learns from, got {task!r}")


def require_mean(method: MethodSettings) -> None:
    """Raises SettingsError for settings by which the aggregator needs single updates or counts."""
    if method.aggregate != "mean":
        raise SettingsError(f"secure: expected aggregate = mean, got {method.aggregate}")
    if method.anchor.size != "declared":
        words = "because no count of a silo leaves it, and each client computes the anchor by itself"
        raise SettingsError(f"secure: expected anchor.size = declared, {words}, got {method.anchor.size}")
    for name in SINGLE:
        if (value := getattr(method, name)) != 0:
            raise SettingsError(
                f"secure: expected {name} = 0, got {value:g}: the size of a single update is not visible"
            )
