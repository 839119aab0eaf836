"""A run's settings and a silo's counts -> the memory and time that a run takes, before anything of it is allocated.

An aggregator chooses a run's settings, within the ranges that each setting has. Many of these are wide, so that some
combinations take more memory than any machine has: the system then ends the process, and with it everything that the
silo serves. So a client estimates first, and refuses what its policy does not bear.

The estimates count the large arrays and the long loops alone. They are right to a factor of about two.
"""

from __future__ import annotations

from typing import NamedTuple

from client_service.memory import usable_memory
from client_service.policy import Policy
from shared.errors import SettingsError
from shared.method.anchor import declared_size
from shared.method.declaration import Counts, Declaration, Part
from shared.method.exchange import EXCHANGES, ITEM_TABLE
from shared.method.settings import MethodSettings
from shared.protocol.lengths import least_update
from shared.strategies.strategy import Strategy

SHARE = 0.75  # of the memory that there is; the rest is for what the silo serves
RATE = 1e10  # products and sums of dense arrays in a second
SPARSE = 20.0  # one of a sparse array takes as long as so many
STEP = 1e7  # what a step of training takes beside its arithmetic
BLOCK_NUMBERS = 40_000_000  # of a block Lanczos basis (shared.method.block_lanczos)
DENSE_SIDE = 256  # up to which a spectrum is computed from a dense array (shared.method.spectrum)
DIRECTION_STEPS = 6  # vectors that the iterative solver tries for each one that it finds
PAIRS_SIDE = 12_000  # users or items up to which all their pairs are computed (learning.fusing.ONE_RIDGE_SIDE)
FUSED_DIRECTIONS = 168  # of the closed-form factors that are fused with the trained score
LONGEST_VISIT = 64  # clicks of a padded session
WHOLE_GRAPH = ("ngcf", "attention", "metapath")  # models that compute every node in each step
MLP_HEADS = ("lgcn", "masked", "frequency", "ngcf")


class Cost(NamedTuple):
    """Of one part of a run: bytes that it holds at once, and operations of one round."""

    what: str
    bytes: float
    operations: float = 0.0


def require_affordable(
    strategy: Strategy,
    method: MethodSettings,
    policy: Policy,
    shard: Counts,
    declaration: Declaration,
    part: Part,
) -> None:
    """SettingsError for a run that takes more memory or time than the silo's policy allows.

    shard: the silo's own counts. declaration: what the run's part sends.
    """
    costs = estimate_costs(strategy, method, shard, policy.anchor_size, declaration, part)
    largest, longest = max(costs, key=lambda one: one.bytes), max(costs, key=lambda one: one.operations)
    allowed = policy.most_memory_bytes or int(SHARE * usable_memory())
    if (needed := total_bytes(costs)) > allowed:
        expected = f"expected a run that takes at most {_bytes(allowed)} of memory here (policy.most_memory_bytes)"
        raise SettingsError(f"policy: {expected}, got one of about {_bytes(needed)}, mostly for {largest.what}")
    if (seconds := total_seconds(costs)) > policy.most_round_seconds:
        expected = f"expected a round of at most {policy.most_round_seconds:,.0f} s (policy.most_round_seconds)"
        raise SettingsError(f"policy: {expected}, got one of about {seconds:,.0f} s, mostly for {longest.what}")


def total_bytes(costs: list[Cost]) -> float:
    """The model lies in memory throughout; of the rest one part at a time."""
    return costs[0].bytes + max((cost.bytes for cost in costs[1:]), default=0.0)


def total_seconds(costs: list[Cost]) -> float:
    """One part after the other."""
    return sum(cost.operations for cost in costs) / RATE


def estimate_costs(
    strategy: Strategy,
    method: MethodSettings,
    shard: Counts,
    agreed: Counts | None,
    declaration: Declaration,
    part: Part,
) -> list[Cost]:
    """Each part of a run; what lies in memory throughout is the first. agreed: size of an anchor of counts."""
    update = Cost("the update", 6.0 * least_update(declaration))
    if part == "basis":
        return [*_basis_costs(method, shard), update]
    model = strategy.model or method.model
    training = _session_costs if EXCHANGES[model].task == "sessions" else _item_costs
    costs = [*training(model, method, shard), update]
    if strategy.spectral_scalar:
        size = declared_size(method.anchor) if method.anchor.size == "declared" else agreed
        costs += [] if size is None else [_anchor_cost(size, method.cutoff)]
    return costs


def _anchor_cost(size: Counts, cutoff: int) -> Cost:
    """The graph is drawn, normalised, and its spectrum computed."""
    pairs = float(size.users) * size.items
    edges = min(float(size.edges), pairs)
    drawn = 8.0 * pairs if edges > pairs / 20.0 or pairs <= 10_000 else 32.0 * edges  # as numpy draws without repeats
    found = _spectrum_cost("", Counts(users=size.users, items=size.items, edges=max(1, int(edges))), cutoff)
    words = f"the anchor (anchor.users {size.users:,}, anchor.items {size.items:,}, anchor.edges {size.edges:,})"
    return Cost(words, max(drawn + 24.0 * edges, found.bytes), SPARSE * 4.0 * edges + found.operations)


def _spectrum_cost(what: str, graph: Counts, cutoff: int) -> Cost:
    """Of a graph's lowest frequencies (shared.method.spectrum)."""
    short, long = sorted((graph.users, graph.items))
    count = max(1, min(cutoff, short - 1))
    if short <= max(DENSE_SIDE, 2 * count):
        return Cost(what, 8.0 * 4.0 * short * long, 8.0 * short * short * long)
    basis = min(max(float(BLOCK_NUMBERS), 2.0 * (count + 32) * short), DIRECTION_STEPS * float(count) * short)
    vectors = DIRECTION_STEPS * float(count)
    operations = vectors * (SPARSE * 4.0 * graph.edges + 4.0 * (basis / short) * short)
    return Cost(what, 80.0 * graph.edges + 8.0 * basis + 24.0 * (short + long) * count, operations)


def _item_costs(model: str, method: MethodSettings, shard: Counts) -> list[Cost]:
    """Of training on interactions of users with items: the model first."""
    users, items = shard.users, shard.items
    nodes, kept = users + items, min(method.cutoff, max(1, min(users, items) - 1))
    exact = method.start != "random" and EXCHANGES[model].starts_at_filter
    width = max(method.width, min(kept, 128)) if exact else method.width
    held = nodes * (12.0 * kept + 4.0 * 6.0 * width)
    if ITEM_TABLE in EXCHANGES[model].names:
        held += 4.0 * 12.0 * method.catalogue * method.width
    found = [Cost(f"the model (width {method.width:,}, cutoff {method.cutoff:,})", held)]
    found.append(_spectrum_cost(f"the own spectrum (cutoff {method.cutoff:,})", shard, method.cutoff))
    if exact and method.fusion:
        found.append(_fusion_cost(users, items))
    return [*found, _step_cost(model, method, shard, width)]


def _step_cost(model: str, method: MethodSettings, shard: Counts, width: int) -> Cost:
    """A step's arrays, and the operations of all steps of a round."""
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


def _fusion_cost(users: int, items: int) -> Cost:
    """Of the closed-form scores, which are of the silo's own size whatever the settings are."""
    short = min(users, items)
    pairs = 16.0 * short**2 if short <= PAIRS_SIDE else 0.0
    return Cost("the closed-form scores (fusion)", pairs + 8.0 * FUSED_DIRECTIONS * (users + items))


def _session_costs(model: str, method: MethodSettings, shard: Counts) -> list[Cost]:
    """Of training on visits: the model first."""
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
    return [Cost(f"the model (width {width:,}, {rows:,} items)", tables), Cost(words, scores + visits, operations)]


def _basis_costs(method: MethodSettings, shard: Counts) -> list[Cost]:
    """Of a silo's part of the sums and of what is made of them: what is kept of the rounds first."""
    basis, items = method.basis, float(method.catalogue)
    if basis.kind == "exact":
        square = (24.0 if basis.epsilon is None else 40.0) * items**2
        return [Cost("the sums", 4.0 * items**2), Cost(f"pairs of {method.catalogue:,} items", square, 10.0 * items**2)]
    columns = float(basis.directions)
    kept = 4.0 * items * (basis.words or basis.rank) * basis.sums_needed
    words = f"{basis.directions:,} directions (basis.rank, basis.words, basis.rounds) of {method.catalogue:,} items"
    held = 8.0 * (5.0 * items * columns + 3.0 * columns**2 + 2.0 * shard.users * (basis.words or basis.rank))
    operations = SPARSE * 4.0 * shard.edges * columns + 8.0 * items * columns**2 + 10.0 * columns**3
    return [Cost("the sums", kept), Cost(words, held, operations)]


def _bytes(count: float) -> str:
    """Of a size, in words."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
