"""Changes of answers about nodes by the event log: posted features, edges, labels, and erasures."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.nodes import NO_LABEL, CompiledNodes
from client_service.event_log.database import LogSnapshot
from client_service.event_log.node_store import NodeFacts, NodeStore

NO_FACTS = NodeFacts()


@dataclass
class NodeChanges:
    """Changes of a graph since it was compiled.

    erased: rows that are gone; None without any. facts: by the node's id.

    links: weights of posted edges, by both ends. changed_rows: rows whose features, edges or neighbours' features
    differ from the graph's.
    """

    nodes: CompiledNodes
    erased: NDArray[np.bool_] | None = None
    facts: dict[str, NodeFacts] = field(default_factory=dict)
    links: dict[str, dict[str, float]] = field(default_factory=dict)
    changed_rows: set[int] = field(default_factory=set)

    def row(self, node: str) -> int | None:
        """Returns the node's row in the graph; None for an unknown or an erased node."""
        row = self.nodes.node_ids.row(node)
        return None if row is None or (self.erased is not None and self.erased[row]) else row

    def apply(self, posted: Mapping[str, NodeFacts]) -> None:
        """Replaces the posted features, edges and labels of these nodes.

        The log has each edge at one end. Dictionaries of links are replaced and not changed, because an answer may be
        reading one; each once, because a node may be at one end of most edges.
        """
        links: dict[str, dict[str, float]] = {}

        def change(node: str) -> dict[str, float]:
            if node not in links:
                links[node] = dict(self.links.get(node, {}))
            return links[node]

        for node in posted:
            for other in self.facts.get(node, NO_FACTS).neighbours:
                change(other).pop(node, None)
                change(node).pop(other, None)
        for node, facts in posted.items():
            self.facts[node] = facts
            for other, weight in facts.neighbours.items():
                change(node)[other] = change(other)[node] = weight
            if facts.neighbours:
                ends = (self.row(one) for one in (node, *facts.neighbours))
                self.changed_rows.update(row for row in ends if row is not None)
            if facts.features is not None and (row := self.row(node)) is not None:
                self.mark_changed((row,))
        self.links.update(links)

    def mark_changed(self, rows: Iterable[int]) -> None:
        """Marks changed or erased rows, and the rows of their neighbours."""
        for row in rows:
            self.changed_rows.update((row, *self.nodes.edges.row(row)[0].tolist()))


class NodeOverlay:
    """Changes since a graph was compiled, by the event log; empty without a store."""

    least_rating = 0.0

    def __init__(self, nodes: CompiledNodes, store: NodeStore | None = None) -> None:
        self._nodes, self._store, self._later = nodes, store, NodeChanges(nodes)
        self._lock, self._followed = threading.RLock(), -1  # the change number of the log up to which it has read
        self._snapshot, self._base, self._missed_erasure = LogSnapshot(), 0, False
        self._erased_by: tuple[frozenset[bytes], bool] = frozenset(), False
        if store is not None:
            self.attach_store(store)

    @property
    def nodes(self) -> CompiledNodes:
        """Graph that the overlay changes."""
        return self._nodes

    @property
    def shard_digest(self) -> str:
        """Digest of the shard that the overlay changes."""
        return self._nodes.digest

    @property
    def known_nodes(self) -> int:
        """Number of nodes of the graph that are not erased."""
        erased = self._later.erased
        return self._nodes.head.nodes - (0 if erased is None else int(erased.sum()))

    def contains(self, node: str) -> bool:
        """Checks if the graph has this node, and the node is not erased."""
        return self.row(node) is not None

    def row(self, node: str) -> int | None:
        """Returns the node's row in the graph; None for an unknown or an erased node."""
        return self._later.row(node)

    def is_erased(self, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Checks which of these rows are erased; None if no row is."""
        erased = self._later.erased
        return None if erased is None else erased[rows]

    def has_changed(self, row: int) -> bool:
        """Checks if the node's features, edges or neighbours' features differ from the graph's."""
        return row in self._later.changed_rows

    def facts(self, node: str) -> NodeFacts:
        """Returns the posted features, edges and label of a node."""
        return self._later.facts.get(node, NO_FACTS)

    def links(self, node: str) -> Mapping[str, float]:
        """Returns posted weights of the node's edges by neighbour; 0: removed."""
        return self._later.links.get(node, {})

    def label(self, node: str | None, row: int | None) -> str | None:
        """Returns the label that the silo has of a node, posted or compiled."""
        facts = NO_FACTS if node is None else self.facts(node)
        if facts.labelled:
            return facts.label
        label = NO_LABEL if row is None else int(self._nodes.labels[row])
        return None if label == NO_LABEL else self._nodes.head.classes[label]

    def attach_store(self, store: NodeStore) -> None:
        """Attaches the event log, whose content is later than this graph."""
        with self._lock:
            self._store, self._followed = store, store.change_number()
            self._read(store)
            self._base, self._missed_erasure = self._snapshot.absorbed, False
            self._apply_facts(self._later.facts)

    def follow(self) -> None:
        """Reads what any process has written to the log since the last call.

        A call without news takes some microseconds.
        """
        store = self._store
        if store is None or store.change_number() == self._followed:
            return
        with self._lock:
            number = store.change_number()
            if number != self._followed:
                self._follow(store)
                self._followed = number

    def reload(self) -> None:
        """Reads all of the event log.

        Where another shard has absorbed the log since, earlier changes stay.
        """
        assert self._store is not None
        with self._lock:
            self._read(self._store)

    def _follow(self, store: NodeStore) -> None:
        rewritten, changed = store.count_changes()
        if rewritten != self._snapshot.rewritten:
            self._read(store)
        elif changed != self._snapshot.changed:
            changed, facts = store.read_nodes(self._snapshot.changed)
            self._snapshot = replace(self._snapshot, changed=changed)
            self._later.apply(facts)

    def _read(self, store: NodeStore) -> None:
        snapshot, facts = store.read_all()
        if snapshot.shard == self.shard_digest:
            self._base = snapshot.absorbed
        self._missed_erasure = snapshot.absorbed != self._base and (
            self._missed_erasure or snapshot.forgotten > self._snapshot.rewritten
        )
        if snapshot.absorbed != self._base:
            snapshot = replace(snapshot, erased=snapshot.erased | self._snapshot.erased)
            before = {node: known for node, known in self._later.facts.items() if not snapshot.erases(node)}
            facts = {} if self._missed_erasure else before | facts
        self._snapshot = snapshot
        self._apply_facts(facts)

    def _apply_facts(self, facts: Mapping[str, NodeFacts]) -> None:
        """Shows facts and erasures to answers, all at once."""
        ids, snapshot, count = self._nodes.node_ids, self._snapshot, self._nodes.head.nodes
        erased = self._later.erased
        if (snapshot.erased, self._missed_erasure) != self._erased_by:
            self._erased_by, erased = (snapshot.erased, self._missed_erasure), None
            if self._missed_erasure or snapshot.erased:
                gone = (self._missed_erasure or snapshot.erases(ids[row]) for row in range(count))
                erased = np.fromiter(gone, dtype=bool, count=count)
        later = NodeChanges(self._nodes, erased)
        later.mark_changed(() if erased is None else np.flatnonzero(erased).tolist())
        later.apply(facts)
        self._later = later
