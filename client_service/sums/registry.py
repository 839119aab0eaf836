"""Registry of the sums at a silo.

A new sum is a file of this package and a line here.
"""

from __future__ import annotations

from client_service.sums.common_items import COMMON_ITEMS_SUM
from client_service.sums.content import CONTENT_SILO_SUM
from client_service.sums.item_sums import EXACT_SUM, ITERATED_SUM
from client_service.sums.node_borders import NODE_BORDERS_SUM
from client_service.sums.node_directions import NODE_DIRECTIONS_SUM
from client_service.sums.node_gram import NODE_GRAM_SUM
from client_service.sums.silo_sum import SiloSum
from client_service.sums.transitions import TRANSITIONS_SUM
from shared.errors import SettingsError
from shared.method.settings import MethodSettings
from shared.sums import find_sum

SILO_SUMS: dict[str, SiloSum] = {
    one.declared.name: one
    for one in (
        COMMON_ITEMS_SUM,
        CONTENT_SILO_SUM,
        EXACT_SUM,
        ITERATED_SUM,
        TRANSITIONS_SUM,
        NODE_BORDERS_SUM,
        NODE_DIRECTIONS_SUM,
        NODE_GRAM_SUM,
    )
}


def find_silo_sum(method: MethodSettings, task: str) -> SiloSum:
    """Returns the sum that the settings choose; raises SettingsError for another task's sum."""
    chosen = SILO_SUMS[find_sum(method).name]
    if chosen.task != task:
        expected = f"expected 'off' with task {task!r}, or a sum of its data"
        raise SettingsError(f"method.basis: {expected}, got {chosen.declared.name!r} of {chosen.task!r}")
    return chosen
