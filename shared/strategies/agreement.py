"""Settings -> may a federation aggregate securely, and on which terms: what both sides must come to by themselves."""

from __future__ import annotations

from shared.errors import SettingsError
from shared.method.declaration import Declaration
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES
from shared.strategies.server_optimisers import magnitudes_for
from shared.strategies.strategy import Strategy
from shared.strategies.sum_strategy import declare_sums

SINGLE = ("clip_factor", "quarantine_factor")  # 0 turns each off


def declare_federation(strategy: Strategy, method: MethodSettings, *, secure: bool) -> Declaration:
    """All that a federation's clients may send, in training runs and in those that sum.

    SettingsError for what cannot be secure.
    """
    declaration, sums = strategy.declaration(method), declare_sums(method)
    if strategy.report is not None and not secure:
        words = "expected computed, because the aggregator sees the updates"
        raise SettingsError(f"server_step.magnitudes: {words}, got reported in a federation that is not secure")
    if secure:
        declaration = secure_declaration(declaration, strategy, method)
        sums = {part: one.model_copy(update={"secure": True}) for part, one in sums.items()}
    return declaration.model_copy(update={"sums": sums})


def settle_similarity(method: MethodSettings, *, secure: bool) -> MethodSettings:
    """The run's settings with the `similarity_floor` that holds where nobody has chosen one.

    1 in a secure federation: with less, clients go on from different parameters, and an aggregator that lies about the
    mean tells one client's update from a sum (docs/privacy.md).
    """
    if method.similarity_floor is not None:
        return method
    return method.model_copy(update={"similarity_floor": 1.0 if secure else 0.0})


def secure_declaration(declaration: Declaration, strategy: Strategy, method: MethodSettings) -> Declaration:
    """The declaration of a federation that sums in secret. SettingsError for what needs to see single updates."""
    if strategy.server != "none" and magnitudes_for(strategy.server, method) == "computed":
        words = "expected server_step.magnitudes = reported, where each client masks the size of its update's change"
        raise SettingsError(f"secure: {words}, or off; got computed")
    if strategy.needs_single_updates and strategy.tells:
        told = " and ".join(sorted(strategy.tells))
        words = f"{strategy.name!r}, which gives each client a mean of its own, by single {told}"
        raise SettingsError(f"secure: expected a strategy that needs the mean alone, got {words}")
    if strategy.needs_single_updates or not (declaration.tensors or strategy.sums_alone):
        raise SettingsError(f"secure: expected a strategy that needs the mean alone, got {strategy.name!r}")
    require_mean(method)
    return declaration.model_copy(update={"secure": True})


def learnt_task(strategy: Strategy, method: MethodSettings) -> str:
    """The name of the task whose data the strategy's model learns from."""
    return EXCHANGES[strategy.model or method.model].task


def require_task(strategy: Strategy, method: MethodSettings, task: str) -> None:
    """SettingsError for a model that learns from other data: one of users from sessions, or the other way round."""
    model = strategy.model or method.model
    if (needed := learnt_task(strategy, method)) != task:
        raise SettingsError(f"task: expected {needed!r}, whose data the model {model!r} learns from, got {task!r}")


def require_mean(method: MethodSettings) -> None:
    """SettingsError for a run's settings that look at single updates or counts at the aggregator."""
    if method.aggregate != "mean":
        raise SettingsError(f"secure: expected aggregate = mean, got {method.aggregate}")
    if method.anchor.size != "declared":
        words = "because no count of a silo leaves it, and each client computes the anchor by itself"
        raise SettingsError(f"secure: expected anchor.size = declared, {words}, got {method.anchor.size}")
    for name in SINGLE:
        if (value := getattr(method, name)) != 0:
            raise SettingsError(f"secure: expected {name} = 0, got {value:g}: nobody sees a single update's size")
