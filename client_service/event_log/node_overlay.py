"""What the log changes in answers about nodes: posted nodes, features, edges and labels, and erased nodes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from client_service.compiled.nodes import NO_LABEL, CompiledNodes
from client_service.data.ids import normalise_id
from client_service.event_log.database import LogSnapshot
from client_service.event_log.node_store import NodeFacts, NodeStore

NOTHING = NodeFacts()


class NodeOverlay:
    """What is later than the compiled graph; empty without a store."""

    least_rating = 0.0

    def __init__(self, nodes: CompiledNodes, store: NodeStore | None = None) -> None:
        self._nodes, self._store = nodes, store
        self._lock, self._followed = threading.RLock(), -1  # the change number of the log up to which it has read
        self._told, self._base, self._missed = LogSnapshot(), 0, False
        self._facts: dict[str, NodeFacts] = {}
        self._links: dict[str, dict[str, float]] = {}
        self._touched: frozenset[int] = frozenset()
        self._erased: NDArray[np.bool_] | None = None
        if store is not None:
            self.attach_store(store)

    @property
    def shard_digest(self) -> str:
        """Of the shard than which it is later."""
        return self._nodes.digest

    @property
    def known_nodes(self) -> int:
        """How many nodes of the graph are not erased."""
        return self._nodes.head.nodes - (0 if self._erased is None else int(self._erased.sum()))

    def holds(self, node: str) -> bool:
        """Has the graph this node, which has not been erased since?"""
        return self.row(node) is not None

    def row(self, node: str) -> int | None:
        """The node's row in the graph; None for one that is not there, or erased since."""
        row = self._nodes.node_ids.row(node)
        return None if row is None or (self._erased is not None and self._erased[row]) else row

    def is_erased(self, rows: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Which of these rows are erased; None: none is."""
        return None if self._erased is None else self._erased[rows]

    def is_touched(self, row: int) -> bool:
        """Are the node's features, its edges or its neighbours' features others than in the graph?"""
        return row in self._touched

    def facts(self, node: str) -> NodeFacts:
        """What was told of a node."""
        return self._facts.get(node, NOTHING)

    def links(self, node: str) -> Mapping[str, float]:
        """Weights of the node's edges that were told of, by the other node's id; 0: there is none any more."""
        return self._links.get(node, {})

    def label(self, node: str | None, row: int | None) -> str | None:
        """The label that the silo has of a node, which may be later than the graph."""
        facts = NOTHING if node is None else self.facts(node)
        if facts.labelled:
            return facts.label
        label = NO_LABEL if row is None else int(self._nodes.labels[row])
        return None if label == NO_LABEL else self._nodes.head.classes[label]

    def attach_store(self, store: NodeStore) -> None:
        """Follow this log from now on: it is what has happened since this graph was written."""
        with self._lock:
            self._store, self._followed = store, store.change_number()
            self._read(store)
            self._base, self._missed = self._told.absorbed, False
            self._show()

    def follow(self) -> None:
        """Takes up all that any process has written to the log since the last call; some microseconds without news."""
        store = self._store
        if store is None or store.change_number() == self._followed:
            return
        with self._lock:
            number = store.change_number()
            if number != self._followed:
                self._follow(store)
                self._followed = number

    def begin_anew(self) -> None:
        """Read all of the log; where another shard has absorbed it since, what was known stays."""
        assert self._store is not None
        with self._lock:
            self._read(self._store)
            self._show()

    def _follow(self, store: NodeStore) -> None:
        rewritten, changed = store.count_changes()
        if rewritten != self._told.rewritten:
            self._read(store)
        elif changed != self._told.changed:
            changed, facts = store.read_nodes(self._told.changed)
            self._facts = self._facts | facts
            self._told = replace(self._told, changed=changed)
        self._show()

    def _read(self, store: NodeStore) -> None:
        told, facts = store.read_all()
        if told.shard == self.shard_digest:
            self._base = told.absorbed
        self._missed = told.absorbed != self._base and (self._missed or told.forgotten > self._told.rewritten)
        if told.absorbed != self._base:
            told = replace(told, erased=told.erased | self._told.erased)
            before = {node: known for node, known in self._facts.items() if not told.erases(node)}
            facts = {} if self._missed else before | facts
        self._facts, self._told = facts, told

    def _show(self) -> None:
        """Work out what follows from the facts and the erasures."""
        ids, told = self._nodes.node_ids, self._told
        self._erased = None
        if self._missed or told.erased:
            gone = (self._missed or told.erases(ids[row]) for row in range(self._nodes.head.nodes))
            erased = np.fromiter(gone, dtype=bool, count=self._nodes.head.nodes)
            self._erased = erased if erased.any() else None
        links: dict[str, dict[str, float]] = {}
        moved: list[int] = [] if self._erased is None else np.flatnonzero(self._erased).tolist()
        touched: set[int] = set()
        for node, facts in self._facts.items():
            for other, weight in facts.neighbours.items():
                links.setdefault(node, {})[normalise_id(other)] = weight
                links.setdefault(normalise_id(other), {})[node] = weight
            if facts.features is not None and (row := self.row(node)) is not None:
                moved.append(row)
        touched.update(row for node in links if (row := self.row(node)) is not None)
        for row in moved:
            touched.update((row, *self._nodes.edges.row(row)[0].tolist()))
        self._links, self._touched = links, frozenset(touched)
