"""Estimate of the memory that a run takes at the aggregator, made before it starts.

Settings come from the operator, and sizes of the anchor, where `anchor.size` = counts, from clients. Each is within
its range, but together they may need more memory than the machine has: the system would then end the aggregator,
again after each start. The estimate is a small factor above what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from shared.errors import SettingsError
from shared.method.anchor import choose_size
from shared.method.declaration import Counts, Declaration, Part
from shared.method.run_memory import Cost, allowed_memory, anchor_cost, describe_bytes
from shared.method.settings import MethodSettings
from shared.protocol.lengths import least_update
from shared.strategies import strategy_of_part
from shared.strategies.robust_aggregation import COLUMNS, PIECE

STATES = 4.0  # the state before, the centre, the state after, and one on its way to the disk or to a client
DISTANCES = 8.0  # float64 arrays of a tensor, in float32 arrays of it


def estimate_costs(
    declaration: Declaration, method: MethodSettings, part: Part, clients: int, counts: Sequence[Counts] = ()
) -> list[Cost]:
    """Estimates the memory of each step of a run with this many clients.

    The first cost is in memory throughout. declaration: of the federation. counts: sizes that its clients declare of
    their graphs.
    """
    strategy, sent = strategy_of_part(part, declaration.strategy, method), declaration.of_part(part)
    update = float(least_update(sent))
    largest = max((4.0 * one.form.size for one in sent.uploaded), default=0.0)
    has_memory = strategy.step is not None
    broadcast = 4.0 * STATES * sum(spec.form.size for spec in strategy.broadcasts)
    state = update * (STATES + (3.0 if has_memory else 0.0)) + broadcast
    costs = [Cost(f"the run's state ({update / 4:,.0f} numbers)", state)]
    costs.append(Cost("the sum of a tensor", 2.0 * largest))
    if method.clip_factor > 0 or method.quarantine_factor > 0:
        costs.append(Cost("the distances of updates (clip_factor, quarantine_factor)", DISTANCES * largest))
    if method.aggregate != "mean":
        pieces = 5.0 * min(8.0 * PIECE, 2.0 * clients * largest)
        stacked, words = clients * largest, f"a tensor of {clients:,} clients at once (aggregate = {method.aggregate})"
        if method.aggregate != "krum" and method.clip_factor == 0:  # in blocks of all clients' columns
            stacked = min(stacked, 4.0 * max(COLUMNS, clients))
        costs.append(Cost(words, 2.0 * stacked + 4.0 * largest + pieces))
    if strategy.answer is not None:
        costs.append(Cost(f"a mean for each of {clients:,} clients", clients * (2.0 * update + 7.0 * largest)))
    if strategy.spectral_scalar:
        costs.append(anchor_cost(choose_size(method.anchor, counts)[0], method.cutoff))
    return costs


def require_affordable(costs: Sequence[Cost], most_memory_bytes: int | None) -> None:
    """Raises SettingsError for a run that needs more memory than allowed.

    The setting `most_memory_bytes` or the machine's memory is the limit.
    """
    allowed, largest = allowed_memory(most_memory_bytes), max(costs, key=lambda one: one.bytes)
    needed = costs[0].bytes + max((cost.bytes for cost in costs[1:]), default=0.0)
    if needed > allowed:
        expected = f"expected a run whose aggregation takes at most {describe_bytes(allowed)} of memory here"
        got = f"got one of about {describe_bytes(needed)}, mostly for {largest.what}"
        what_to_do = "change the run's settings, or raise LPSFED_AGGREGATOR_MOST_MEMORY_BYTES if the machine has more"
        raise SettingsError(f"most_memory_bytes: {expected}, {got}: {what_to_do}")
