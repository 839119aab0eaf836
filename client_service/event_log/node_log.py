"""Event log of a silo of nodes: stores what applications post, then changes every answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from client_service.data.files import current_file
from client_service.event_log.messages import ErasedNodeOut, NodeEventIn, NodesIn, NodesOut
from client_service.event_log.node_overlay import NodeOverlay
from client_service.event_log.node_store import NamedEvent, NodeStore
from client_service.event_log.service import BATCH_SIZE, LogSettings, SiloLog, describe_receipt
from client_service.runtime.workers import RequestBatcher
from shared.errors import FederationError, ProtocolError
from shared.words import count_noun

HEAD = "shard.json"


class NodeLog(SiloLog[NodeStore, NodeOverlay]):
    """Event log of nodes, edges and labels."""

    def __init__(self, store: NodeStore, overlay: NodeOverlay, folder: Path) -> None:
        super().__init__(store, overlay, folder, has_other_nodes)
        nodes = overlay.nodes
        self._names, self._classes = nodes.feature_names, frozenset(nodes.head.classes)
        self._batches = RequestBatcher(self._store_nodes, BATCH_SIZE)

    async def add_nodes(self, message: NodesIn) -> NodesOut:
        """Stores nodes: once this returns, they are on the disk and in the next answer.

        ProtocolError for features or labels that the silo does not know, which are not quoted.
        """
        batch = self._read(message.nodes)
        accepted = await self._batches.ask(batch)
        waiting = {event.node for event, _ in batch if self._waits(event.node)}
        return NodesOut(accepted=accepted, waiting=len(waiting))

    def erase_node(self, node: str) -> ErasedNodeOut:
        """Erases a node, which is unknown from the next answer on."""
        gone, receipt = self.erase(node)
        return ErasedNodeOut(events=gone, **describe_receipt(receipt))

    def _waits(self, node: str) -> bool:
        return self.overlay.row(node) is None and self.overlay.facts(node).features is None

    def _read(self, events: Sequence[NodeEventIn]) -> list[NamedEvent]:
        unknown = sum(event.label is not None and event.label not in self._classes for event in events)
        if unknown:
            known = count_noun(len(self._classes), "class", "classes")
            raise ProtocolError(f"body.nodes: expected labels of the silo's {known}, got {unknown} others")
        return [(event, self._name_features(event)) for event in events]

    def _name_features(self, event: NodeEventIn) -> Mapping[str, float] | None:
        """Returns the non-zero features of an event by their names."""
        given, names = event.features, self._names
        if given is None:
            return None
        if not isinstance(given, dict):
            if len(given) != len(names):
                words = f"expected {len(names):,} features in the shard's order, got {len(given):,}"
                raise ProtocolError(f"body.nodes: {words}")
            return {names[place]: value for place, value in enumerate(given) if value}
        rows = names.rows(given)
        if missing := sum(row is None for row in rows):
            words = f"expected names of the silo's {count_noun(len(names), 'feature')}"
            raise ProtocolError(f"body.nodes: {words}, got {count_noun(missing, 'unknown name')}")
        return {names[row]: value for row, value in zip(rows, given.values(), strict=True) if row is not None and value}

    def _store_nodes(self, batches: Sequence[Sequence[NamedEvent]]) -> list[int | FederationError]:
        with self._lock:
            found = self.store.put_each(batches)
            self.overlay.follow()
            return found


def has_other_nodes(folder: Path, digest: str) -> bool:
    """Checks if the shard in a folder has another digest, or no readable head."""
    try:
        found = json.loads(current_file(folder, HEAD).read_bytes())
        return bool(found["digest"] != digest)
    except (OSError, ValueError, KeyError, TypeError):
        return True


def open_node_store(settings: LogSettings) -> NodeStore:
    """Opens the file of the event log for writing."""
    return NodeStore(settings.state_directory, most=settings.most_interactions)


def open_node_log(settings: LogSettings, overlay: NodeOverlay) -> NodeLog:
    """Opens the event log, which the overlay follows from then on."""
    store = open_node_store(settings)
    overlay.attach_store(store)
    return NodeLog(store, overlay, settings.shard)
