"""Estimates memory and time of a run before anything is allocated.

An aggregator chooses a run's settings, within the ranges that each setting has. Many of these are wide, so that some
combinations take more memory than any machine has: the system then ends the process, and with it everything that the
silo serves. So a client estimates first, and refuses what its policy does not allow.

An estimate of memory is an upper bound of what a run takes beside what the process has before it, by a small factor
(test_run_cost.py measures). Estimates of time are right to a factor of about two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from client_service.boundary.policy import Policy
from client_service.evaluation.ranking import VALIDATION_USERS
from client_service.models.closed_form.ease import ONE_RIDGE_SIDE
from client_service.models.closed_form.full_spectrum import DENSE_ITEMS
from client_service.models.closed_form.scorer_part import MOST_PAIRS
from client_service.sums.registry import SILO_SUMS
from client_service.training.margins import ALL_SCORED_NUMBERS, BLOCK_PAIRS, SCORED_NUMBERS
from client_service.training.recipe_evaluator import MOST_SCORES
from shared.errors import SettingsError
from shared.method.anchor import declared_size
from shared.method.declaration import TRAINING, Counts, Declaration, Part
from shared.method.run_memory import Cost, allowed_memory, anchor_cost, describe_bytes, spectrum_cost
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES, ITEM_TABLE
from shared.protocol.lengths import least_update
from shared.strategies.lpsfed import MARGIN
from shared.strategies.strategy import Strategy
from shared.sums import find_sum

RATE = 1e10  # products and sums of dense arrays in a second
STEP = 1e7  # what a step of training takes beside its arithmetic
FIXED = 190e6  # bytes of code that the first training run loads, and of blocks of a fixed size
COMMON_KEPT = 0.5  # of what it takes to make the scores of a common basis
FUSED_DIRECTIONS = 168  # of the closed-form factors that are fused with the trained score
LONGEST_VISIT = 64  # clicks of a padded session
WHOLE_GRAPH = ("ngcf", "attention", "metapath")  # models that compute every node in each step
MLP_HEADS = ("lgcn", "masked", "frequency", "ngcf")


def require_affordable(
    strategy: Strategy,
    method: MethodSettings,
    policy: Policy,
    shard: Counts,
    declaration: Declaration,
    part: Part,
) -> None:
    """Raises SettingsError for a run that exceeds the policy's memory or time.

    shard: the silo's own counts. declaration: what the run's part sends.
    """
    costs = estimate_costs(strategy, method, shard, policy.anchor_size, declaration, part)
    largest, longest = max(costs, key=lambda one: one.bytes), max(costs, key=lambda one: one.operations)
    allowed = allowed_memory(policy.most_memory_bytes)
    if (needed := total_bytes(costs)) > allowed:
        expected = (
            f"expected a run that takes at most {describe_bytes(allowed)} of memory here (policy.most_memory_bytes)"
        )
        raise SettingsError(f"policy: {expected}, got one of about {describe_bytes(needed)}, mostly for {largest.what}")
    if (seconds := total_seconds(costs)) > policy.most_round_seconds:
        expected = f"expected a round of at most {policy.most_round_seconds:,.0f} s (policy.most_round_seconds)"
        raise SettingsError(f"policy: {expected}, got one of about {seconds:,.0f} s, mostly for {longest.what}")


def total_bytes(costs: list[Cost]) -> float:
    """Sums the memory: the model's throughout, and that of the largest other step."""
    return costs[0].bytes + max((cost.bytes for cost in costs[1:]), default=0.0)


def total_seconds(costs: list[Cost]) -> float:
    """Sums the time of all steps, which run one after the other."""
    return sum(cost.operations for cost in costs) / RATE


def estimate_costs(
    strategy: Strategy,
    method: MethodSettings,
    shard: Counts,
    agreed: Counts | None,
    declaration: Declaration,
    part: Part,
) -> list[Cost]:
    """Estimates the costs of each step of a run, the model's first.

    The model is in memory throughout. agreed: size of an anchor of counts.
    """
    update = Cost("the update", 6.0 * least_update(declaration))
    if part != TRAINING:
        return [*SILO_SUMS[find_sum(method).name].costs(method, shard), update]
    model = strategy.model or method.model
    held, *others = TRAINING_COSTS[EXCHANGES[model].task](model, method, shard)
    costs = [Cost(held.what, held.bytes + _strategy_bytes(strategy)), *others, update]
    if MARGIN in strategy.scalars and model in MLP_HEADS and method.margin_strength > 0:
        costs.append(_margin_cost(model, method, shard))
    if strategy.spectral_scalar:
        size = declared_size(method.anchor) if method.anchor.size == "declared" else agreed
        costs += [] if size is None else [anchor_cost(size, method.cutoff)]
    return costs


def _strategy_bytes(strategy: Strategy) -> float:
    """Estimates the memory of a strategy's tensors outside the model.

    Each is there as it came, as it is computed, and as it is written.
    """
    return 12.0 * sum(spec.form.size for spec in (*strategy.broadcasts, *strategy.client_memory))


def _item_costs(model: str, method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the costs of training on users and items, the model's first."""
    users, items = shard.users, shard.items
    nodes, kept = users + items, min(method.cutoff, max(1, min(users, items) - 1))
    exact = method.start != "random" and EXCHANGES[model].starts_at_filter
    width = max(method.width, min(kept, 128)) if exact else method.width
    held = FIXED + 150.0 * shard.edges + nodes * (36.0 * kept + 4.0 * 12.0 * width)
    if ITEM_TABLE in EXCHANGES[model].names:
        held += 4.0 * 12.0 * method.catalogue * method.width
    found = [Cost(f"the model (width {method.width:,}, cutoff {method.cutoff:,})", held)]
    found.append(spectrum_cost(f"the own spectrum (cutoff {method.cutoff:,})", shard, method.cutoff))
    found.append(_closed_form_cost(users, items))
    if exact and method.fusion and method.basis.kind != "off":
        made = _common_cost(method, users, items)
        # While weights are chosen, both are there: the silo's own closed forms, and those of the basis once made.
        found[-1] = Cost(f"{found[-1].what} and {made.what}", found[-1].bytes + COMMON_KEPT * made.bytes)
        found.append(made)
    return [*found, _step_cost(model, method, shard, width)]


def _margin_cost(model: str, method: MethodSettings, shard: Counts) -> Cost:
    """Estimates the cost of the mean margin, which is computed in blocks of pairs.

    Without a base path the MLP scores all of them.
    """
    pairs = min(max(BLOCK_PAIRS, shard.items), shard.users * shard.items)
    is_residual = method.start != "random" and EXCHANGES[model].starts_at_filter
    scored = min(float(pairs) * method.width, float(SCORED_NUMBERS if is_residual else ALL_SCORED_NUMBERS))
    return Cost(f"the margins of pairs (width {method.width:,})", 40.0 * pairs + 32.0 * scored)


def _step_cost(model: str, method: MethodSettings, shard: Counts, width: int) -> Cost:
    """Estimates the memory of a training step, and the operations of a round."""
    nodes, batch = shard.users + shard.items, min(method.batch_size, shard.edges)
    scored, layers = float(batch) * method.negatives, method.layers + 1
    hidden = scored * method.width if model in MLP_HEADS else 0.0
    rows = nodes if model in WHOLE_GRAPH else 2 * batch + method.negatives
    drawn = 2.0 * method.negatives * shard.users
    joint = 8.0 * method.negatives * method.width**2 if model in MLP_HEADS else 0.0
    held = 32.0 * scored + 12.0 * hidden + joint + 24.0 * rows * layers * width + drawn
    steps = -(-shard.edges // batch) * float(method.local_epochs)
    spread = 6.0 * nodes * min(method.cutoff, min(shard.users, shard.items)) * width
    dense = 6.0 * hidden * method.width + 6.0 * scored * width + spread + 20.0 * nodes * width
    words = f"steps of batch_size {method.batch_size:,}, negatives {method.negatives:,}, width {method.width:,}"
    return Cost(
        f"{words}, local_epochs {method.local_epochs}", held, steps * (dense + 6.0 * rows * layers * width**2 + STEP)
    )


def _closed_form_cost(users: int, items: int) -> Cost:
    """Estimates the cost of the closed-form scores among which weights are chosen.

    They are those that are fused with a model's own, and those of the silo alone, with which every model is compared.
    Their size is the silo's own whatever the settings are.
    """
    short = float(min(users, items))
    pairs = 16.0 * (items if items <= MOST_PAIRS else short) ** 2 if short <= ONE_RIDGE_SIDE else 0.0
    dense = 40.0 * items**2 + 8.0 * users * items if items <= DENSE_ITEMS else 0.0
    scores = 14.0 * 4.0 * min(float(min(users, VALIDATION_USERS)) * items, float(MOST_SCORES))
    return Cost("the closed-form scores", pairs + dense + scores + 12.0 * FUSED_DIRECTIONS * (users + items))


def _common_cost(method: MethodSettings, users: int, items: int) -> Cost:
    """Estimates the cost of scores from a sum's statistics.

    With it, the cost of removing the silo's own part from these.
    """
    chosen, scores = find_sum(method), 16.0 * min(float(min(users, VALIDATION_USERS)) * items, MOST_SCORES)
    words = f"the scores of {chosen.title} ({method.catalogue:,} items)"
    return Cost(words, SILO_SUMS[chosen.name].use_bytes(method) + scores)


def _session_costs(model: str, method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the costs of training on sessions, the model's first."""
    whole = method.sessions.candidates == "catalogue"
    rows, width = (method.catalogue if whole else min(shard.items, method.catalogue or shard.items)), method.width
    batch, clicks = min(method.batch_size, shard.edges), min(LONGEST_VISIT, shard.edges)
    usual = min(clicks, 1 + 3 * shard.edges // shard.users)  # of a padded visit
    tables = 4.0 * width * (6.0 * rows + 3.0 * method.catalogue)
    scores = 4.0 * 4.0 * float(batch) * rows * (2.0 if model == "tagnn" else 1.0)
    visits = 4.0 * float(batch) * clicks * (24.0 * width + 4.0 * clicks)
    pair = 6.0 * width * (usual if model == "tagnn" else 1.0)
    examples = float(shard.edges) * method.local_epochs
    operations = examples * (pair * rows + 60.0 * usual * width**2) + examples / batch * (STEP + 20.0 * rows * width)
    words = f"steps of batch_size {method.batch_size:,} over {rows:,} items, local_epochs {method.local_epochs}"
    found = [Cost(f"the model (width {width:,}, {rows:,} items)", tables), Cost(words, scores + visits, operations)]
    return found if method.basis.kind == "off" else [*found, _common_cost(method, shard.users, rows)]


def _node_costs(model: str, method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the costs of a silo of nodes, the model's first.

    They are those of the closed form, and of training a network.
    """
    nodes, columns, sizes = float(shard.users), float(shard.items), method.nodes
    block = min(columns, float(sizes.directions))
    design = 1.0 + block * (sizes.hops + 1) + sizes.random_features
    held = FIXED + 40.0 * shard.edges + 12.0 * nodes * design + 8.0 * nodes * columns
    hops = 2.0 * shard.edges * columns * sizes.hops
    fitted = Cost(
        f"the closed form ({design:,.0f} columns)", 32.0 * design**2, design**2 * (nodes + 30.0 * design) + hops
    )
    if model == "node_ridge":
        return [Cost(f"the model ({nodes:,.0f} nodes)", held), fitted]
    width, order = method.width, 10.0
    bases = 8.0 * nodes * columns * order
    steps = 6.0 * nodes * columns * (order + width) * method.local_epochs
    words = f"steps of a network of width {width:,}, local_epochs {method.local_epochs}"
    return [Cost(f"the model ({nodes:,.0f} nodes)", held + bases), fitted, Cost(words, bases, steps)]


TRAINING_COSTS: Mapping[str, Callable[[str, MethodSettings, Counts], list[Cost]]] = {
    "items": _item_costs,
    "sessions": _session_costs,
    "nodes": _node_costs,
}
"""By the task of the model."""
