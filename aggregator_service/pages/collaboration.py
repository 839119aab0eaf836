"""Heat map of the weights by which each client learns from the others."""

from __future__ import annotations

from dataclasses import dataclass

from shared.protocol.schemas import CollaborationOut

SHOWN, SHADES = 30, 10


@dataclass(frozen=True)
class HeatCell:
    """One weight as text, with its shade.

    shade: from 0 to SHADES of the largest weight that is shown.
    """

    value: str
    shade: int


@dataclass(frozen=True)
class HeatRow:
    """Row of a client: the weights of all clients in its mixture."""

    client: str
    cells: tuple[HeatCell, ...]


@dataclass(frozen=True)
class HeatMap:
    """Weights W of the clients that a page shows."""

    round: int
    clients: tuple[str, ...]
    rows: tuple[HeatRow, ...]
    notes: tuple[str, ...]
    more: int


def draw_heat_map(found: CollaborationOut | None) -> HeatMap | None:
    """Draws the weights of the first clients by name.

    None if all clients get the same.
    """
    if found is None:
        return None
    shown = found.clients[:SHOWN]
    rows = [row[: len(shown)] for row in found.weights[: len(shown)]]
    most = max((value for row in rows for value in row), default=0.0) or 1.0
    return HeatMap(
        found.round,
        shown,
        tuple(
            HeatRow(client, tuple(HeatCell(f"{value:.2f}", round(SHADES * value / most)) for value in row))
            for client, row in zip(shown, rows, strict=True)
        ),
        (
            f"Similarity at low frequencies is measured by {_describe(found.columns_low)} features.",
            f"Dissimilarity at high frequencies is measured by {_describe(found.columns_high)} features.",
        ),
        len(found.clients) - len(shown),
    )


def _describe(columns: tuple[float, ...]) -> str:
    """Formats the smallest and the largest of some numbers."""
    if not columns:
        return "no"
    least, most = min(columns), max(columns)
    return f"{least:,.1f}" if f"{least:.1f}" == f"{most:.1f}" else f"{least:,.1f} to {most:,.1f}"
