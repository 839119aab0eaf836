"""Posted nodes, edges and labels in the event log's database, by node."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection

from pydantic import Field, ValidationError

from client_service.event_log.database import LogSnapshot
from client_service.event_log.log_store import LogStore, record_absorbed
from client_service.event_log.messages import NodeEventIn
from shared.errors import ConflictError, DataError, FederationError, TooLargeError
from shared.message import Message

MOST = 1_000_000  # nodes with posted facts
LONGEST_FACTS = 1 << 20  # bytes of the facts of one node
MOST_BYTES = 256 << 20  # of the facts of all nodes together
TABLE = """
CREATE TABLE IF NOT EXISTS nodes (node TEXT PRIMARY KEY, facts TEXT NOT NULL, changed INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS nodes_changed ON nodes (changed);
"""


class NodeFacts(Message):
    """Facts that were posted of one node.

    neighbours: weights of edges by the other node's id, 0 if there is none. features: values by name; None:
    unchanged. labelled: a label was posted, which may be none.
    """

    features: dict[str, float] | None = None
    neighbours: dict[str, float] = Field({})
    labelled: bool = False
    label: str | None = None

    def add_event(self, event: NodeEventIn, features: Mapping[str, float] | None) -> NodeFacts:
        """Returns the facts after an event.

        features: those of the event, by their names.
        """
        neighbours = self.neighbours | {edge.node: edge.weight for edge in event.neighbours if edge.node != event.node}
        has_label = "label" in event.model_fields_set
        return NodeFacts(
            features=self.features if features is None else dict(features),
            neighbours=neighbours,
            labelled=self.labelled or has_label,
            label=event.label if has_label else self.label,
        )

    def drop_edge(self, node: str) -> NodeFacts:
        """Returns the facts without the edge to a node."""
        return self.model_copy(update={"neighbours": {k: w for k, w in self.neighbours.items() if k != node}})


NamedEvent = tuple[NodeEventIn, Mapping[str, float] | None]
"""An event, and its features by their names."""


@dataclass(frozen=True)
class AbsorbedNodeBatch:
    """Posted facts that a shard is to absorb, with the erasures known then.

    `upto`: number of the last change by then.
    """

    facts: dict[str, NodeFacts]
    snapshot: LogSnapshot
    upto: int


class NodeStore(LogStore):
    """Store of posted nodes on the disk.

    most: largest number of nodes. most_bytes: largest size of their facts together.
    """

    def __init__(self, folder: Path, *, most: int = MOST, most_bytes: int = MOST_BYTES, writing: bool = True) -> None:
        super().__init__(folder, _remove_node, writing=writing)
        self._most, self._most_bytes = most, most_bytes
        if writing:
            with self._database.transaction() as rows:
                for statement in filter(str.strip, TABLE.split(";")):
                    rows.execute(statement)

    def put_each(self, batches: Sequence[Sequence[NamedEvent]]) -> list[int | FederationError]:
        """Stores batches, all durable at once, and counts the nodes of each.

        A batch without room is left out.
        """
        with self._database.transaction() as rows:
            found: list[int | FederationError] = []
            for batch in batches:
                rows.execute("SAVEPOINT batch")
                try:
                    changed: dict[str, NodeFacts] = {}  # written once, however many edges of the batch lead to a node
                    for event, features in batch:
                        self._put(rows, event, features, changed)
                    for node, facts in changed.items():
                        self._write(rows, node, facts)
                    self._require_room(rows)
                    found.append(len(batch))
                except (ConflictError, TooLargeError) as error:
                    rows.execute("ROLLBACK TO batch")
                    found.append(error)
                rows.execute("RELEASE batch")
            return found

    def _put(
        self, rows: Connection, event: NodeEventIn, features: Mapping[str, float] | None, changed: dict[str, NodeFacts]
    ) -> None:
        name = json.dumps(event.node, ensure_ascii=False)
        for edge in event.neighbours:  # the latest word on an edge counts, from whichever end it came
            other = changed.get(edge.node) or self._read_one(rows, edge.node, name)
            if other is not None and event.node in other.neighbours:
                changed[edge.node] = other.drop_edge(event.node)
        before = changed.get(event.node) or self._read_one(rows, event.node) or NodeFacts()
        changed[event.node] = before.add_event(event, features)

    def _require_room(self, rows: Connection) -> None:
        (held,) = rows.execute("SELECT count(*) FROM nodes").fetchone()
        if held > self._most:
            words = f"expected at most {self._most} posted nodes since the last refresh, got {held - self._most} more"
            raise ConflictError(f"{words}: let the shard absorb them")
        (size,) = rows.execute("SELECT coalesce(sum(length(CAST(facts AS BLOB))), 0) FROM nodes").fetchone()
        if size > self._most_bytes:
            words = f"expected at most {self._most_bytes} bytes of facts of nodes together, got more"
            raise ConflictError(f"{words}: let the shard absorb them")

    def _write(self, rows: Connection, node: str, facts: NodeFacts) -> None:
        text = facts.model_dump_json(exclude_defaults=True)
        if (size := len(text.encode())) > LONGEST_FACTS:
            raise TooLargeError(f"expected at most {LONGEST_FACTS} bytes of facts of one node, got {size}")
        rows.execute("UPDATE place SET changed = changed + 1")
        rows.execute("INSERT OR REPLACE INTO nodes SELECT ?, ?, changed FROM place", [node, text])

    def read_all(self) -> tuple[LogSnapshot, dict[str, NodeFacts]]:
        """Reads erasures and all facts of one moment."""
        with self._database.reading() as rows:
            return self._read_snapshot(rows), self._read_since(rows, -1)

    def read_nodes(self, after: int) -> tuple[int, dict[str, NodeFacts]]:
        """Reads the facts that have changed after a change number, and the newest number."""
        with self._database.reading() as rows:
            (changed,) = rows.execute("SELECT changed FROM place").fetchone()
            return changed, self._read_since(rows, after)

    def begin_merge(self) -> AbsorbedNodeBatch:
        """Reads all that a shard is to absorb.

        From now on the shard may have it: later erasures must reach the shard too.
        """
        with self._database.transaction() as rows:
            rows.execute("UPDATE place SET handed = changed")
            snapshot = self._read_snapshot(rows)
            return AbsorbedNodeBatch(self._read_since(rows, -1), snapshot, snapshot.changed)

    def delete_absorbed(self, batch: AbsorbedNodeBatch, shard: str, kept: Iterable[str]) -> None:
        """Deletes all posts that a shard has absorbed.

        shard: its digest. Later posts stay, and so do nodes `kept`.
        """
        with self._database.transaction() as rows:
            gone = [(node, batch.upto) for node in batch.facts.keys() - set(kept)]
            rows.executemany("DELETE FROM nodes WHERE node = ? AND changed <= ?", gone)
            record_absorbed(rows, batch.upto, batch.snapshot.rewritten, shard)

    def has_new_events(self, count: int, least_rating: float) -> bool:
        """Checks if at least `count` new nodes wait to be absorbed."""
        del least_rating
        some = "SELECT count(*) FROM (SELECT 1 FROM nodes WHERE changed > (SELECT looked FROM place) LIMIT ?)"
        with self._database.reading() as rows:
            (found,) = rows.execute(some, [count]).fetchone()
            return bool(found >= count)

    def _read_snapshot(self, rows: Connection) -> LogSnapshot:
        marks = frozenset(mark for (mark,) in rows.execute("SELECT mark FROM erased"))
        place = rows.execute("SELECT key, rewritten, absorbed, shard, changed, forgotten FROM place").fetchone()
        return LogSnapshot({}, marks, *place)

    def _read_since(self, rows: Connection, after: int) -> dict[str, NodeFacts]:
        found = rows.execute("SELECT node, facts FROM nodes WHERE changed > ? ORDER BY changed", [after])
        return {node: _parse(text, self.path) for node, text in found}

    def _read_one(self, rows: Connection, node: str, text: str = "") -> NodeFacts | None:
        """Reads the posted facts of a node; None without any.

        text: None too where the facts do not contain this piece of JSON.
        """
        query = "SELECT facts FROM nodes WHERE node = ? AND (? = '' OR instr(facts, ?) > 0)"
        found = rows.execute(query, [node, text, text]).fetchone()
        return None if found is None else _parse(found[0], self.path)


def _parse(text: str, path: Path) -> NodeFacts:
    """Reads facts. DataError, without the content, for a damaged row."""
    try:
        return NodeFacts.model_validate_json(text)
    except ValidationError:
        raise DataError(f"{path}: expected facts of a node in the table of nodes, got something else") from None


def _remove_node(rows: Connection, node: str) -> tuple[int, bool]:
    """Deletes the facts of a node, and its edges in facts of others.

    Returns how many rows had some, and whether a shard may have some of it.
    """
    (handed,) = rows.execute("SELECT handed FROM place").fetchone()
    own = rows.execute("SELECT changed FROM nodes WHERE node = ?", [node]).fetchone()
    rows.execute("DELETE FROM nodes WHERE node = ?", [node])
    path = Path("the log of nodes")
    named = [
        (other, facts.drop_edge(node), changed)
        for other, text, changed in rows.execute("SELECT node, facts, changed FROM nodes").fetchall()
        if node in (facts := _parse(text, path)).neighbours
    ]
    for other, facts, _ in named:
        rows.execute("UPDATE place SET changed = changed + 1")
        values = [facts.model_dump_json(exclude_defaults=True), other]
        rows.execute("UPDATE nodes SET facts = ?, changed = (SELECT changed FROM place) WHERE node = ?", values)
    numbers = [changed for *_, changed in named] + ([] if own is None else [own[0]])
    return len(numbers), bool(numbers) and min(numbers) <= handed
