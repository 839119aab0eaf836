"""Labels of nodes: calibrated probabilities and the neighbours that weigh most, by a compiled model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from client_service.compiled.nodes import (
    NO_LABEL,
    CompiledNodeModel,
    CompiledNodes,
    Float64,
    Int64,
    JoinedNode,
    join_node,
    open_node_model,
    open_nodes,
)
from client_service.compiled.publication import Publication
from client_service.serving.model_server import ModelServer
from client_service.serving.node_messages import (
    LABEL_SCORE,
    MOST_SHOWN,
    Features,
    JoiningOut,
    LabelFallback,
    LabelListOut,
    LabelOut,
    LabelsIn,
    NodeIn,
    WeighingNeighbourOut,
)
from shared.errors import NotFoundError, ProtocolError
from shared.words import count_noun


@dataclass(frozen=True)
class AskedNode:
    """A node of a request. row: in the graph, None for a new one. name: its id, where one was given.

    neighbours: rows and weights of its edges. changed: has it other features or edges than in the graph? features: x
    of the node, projected by the model that answers; None as in the graph. unknown: neighbours that the graph has not.
    """

    row: int | None
    name: str | None
    neighbours: Int64
    weights: Float64
    changed: bool
    features: tuple[Int64, Float64] | None = None
    unknown: int = 0


class NodeLabels(ModelServer):
    """Answers nodes from one `CompiledNodeModel` at a time.

    Without a model it answers shares of the training labels.
    """

    score_meaning = LABEL_SCORE

    def __init__(self, nodes: CompiledNodes, take_up: Callable[[Any], CompiledNodeModel] | None = None) -> None:
        """Opens answers about nodes, without a model yet.

        take_up: compiles a model that is assigned to `served`; None: an assigned model answers as it is.
        """
        super().__init__()
        self._nodes, self._take_up = nodes, take_up
        self._served: CompiledNodeModel | None = None

    @property
    def served(self) -> CompiledNodeModel | None:
        """Returns the model that answers, or None before there is one."""
        return self._served

    @served.setter
    def served(self, model: Any) -> None:
        self._served = model if model is None or self._take_up is None else self._take_up(model)

    def take_up(self, serving: Path, published: Publication) -> None:
        """Replaces the model by another published one of the same graph.

        Raises DataError for a damaged folder, or one of another graph.
        """
        folder = published.model
        self._served = None if folder is None else open_node_model(serving / folder, self._nodes)

    @property
    def known_users(self) -> int:
        """How many nodes the silo has."""
        return self._nodes.head.nodes

    @property
    def shown_items(self) -> int:
        """How many classes a label can be of."""
        return len(self._nodes.head.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self._nodes.head.classes

    def answer(self, asked: LabelsIn) -> LabelListOut:
        """A label for each node, in the order of the request.

        NotFoundError for unknown ids, ProtocolError for features that the silo does not have; neither quotes any.
        """
        served, nodes = self.served, [self._read(one) for one in asked.nodes]
        missing = sum(one is None for one in nodes)
        if missing:
            words = (
                f"expected ids of nodes of the silo, or features of new ones, got {count_noun(missing, 'unknown id')}"
            )
            raise NotFoundError(f"{words} of {count_noun(len(nodes), 'node')}")
        results = tuple(self._label(served, one) for one in nodes if one is not None)
        if served is None:
            return LabelListOut(results=results)
        joining = JoiningOut(**served.head.joining.model_dump())
        return LabelListOut(model=served.version, joining=joining, results=results)

    def _read(self, asked: str | NodeIn) -> AskedNode | None:
        """Finds a node of the request; None for an unknown id that is not described."""
        described = NodeIn(node=asked) if isinstance(asked, str) else asked
        row = None if described.node is None else self._nodes.node_ids.row(described.node)
        features = None if described.features is None else self._read_features(described.features)
        if row is None and features is None:
            return None
        if described.neighbours is None:
            neighbours, weights = (np.zeros(0, np.int64), np.zeros(0)) if row is None else self._nodes.edges.row(row)
            changed = row is None or features is not None
            return AskedNode(row, described.node, neighbours, weights.astype(np.float64), changed, features)
        found = {
            place: one.weight
            for one in described.neighbours
            if (place := self._nodes.node_ids.row(one.node)) is not None and place != row
        }
        unknown = sum(self._nodes.node_ids.row(one.node) is None for one in described.neighbours)
        places, weights = np.array(list(found), np.int64), np.array(list(found.values()), np.float64)
        return AskedNode(row, described.node, places, weights, changed=True, features=features, unknown=unknown)

    def _read_features(self, given: Features) -> tuple[Int64, Float64]:
        """Finds the columns and values of features."""
        count = self._nodes.head.features
        if not isinstance(given, dict):
            if len(given) != count:
                raise ProtocolError(f"body.nodes: expected {count:,} features in the shard's order, got {len(given):,}")
            return np.arange(count), np.array(given, dtype=np.float64)
        columns = self._nodes.feature_names.rows(given)
        if missing := sum(one is None for one in columns):
            words = f"expected names of the silo's {count_noun(count, 'feature')}"
            raise ProtocolError(f"body.nodes: {words}, got {count_noun(missing, 'unknown name')}")
        return np.array(columns, dtype=np.int64), np.array(list(given.values()), dtype=np.float64)

    def _label(self, served: CompiledNodeModel | None, asked: AskedNode) -> LabelOut:
        if served is None:
            return self._write(asked, self._nodes.shares, "no model yet", ())
        joined = self._join(served, asked)
        if asked.row is not None and not asked.changed:
            chances = served.probabilities[asked.row].astype(np.float64)
        else:
            with np.errstate(all="ignore"):
                chances = served.scorer.calibrate(served.scorer.score(joined.powers[None]))[0]
        if not np.isfinite(chances).all():
            return self._write(asked, self._nodes.shares, "the model's scores are no numbers", ())
        return self._write(asked, chances, None, self._weigh(served, asked, joined, int(chances.argmax())))

    def _join(self, served: CompiledNodeModel, asked: AskedNode) -> JoinedNode:
        """Computes P^k x of a node, and each neighbour's part of it."""
        rows, row = asked.neighbours, asked.row
        if row is not None and not asked.changed:
            return served.known_node(row, rows, asked.weights)
        before = np.zeros(len(rows))
        if row is not None:
            known, weights = self._nodes.edges.row(row)
            places = np.searchsorted(known, rows)
            inside = places < len(known)
            inside[inside] = known[places[inside]] == rows[inside]
            before[inside] = weights[places[inside]]
        if asked.features is not None:
            own = served.project(*asked.features)
        else:
            own = served.powers[row, 0].astype(np.float64)
        around = served.neighbourhood(rows, asked.weights, before)
        if row is None:
            return join_node(own, around)
        return join_node(own, around, served.powers[row], float(self._nodes.degrees[row]))

    def _weigh(
        self, served: CompiledNodeModel, asked: AskedNode, joined: JoinedNode, column: int
    ) -> tuple[WeighingNeighbourOut, ...]:
        """The neighbours whose parts of the node's powers add most to the score of a class."""
        if not len(asked.neighbours):
            return ()
        slopes = served.scorer.slopes(joined.powers, column)
        added = np.tensordot(joined.parts, slopes[1:], axes=2)
        order = np.argsort(-np.abs(added), kind="stable")[:MOST_SHOWN]
        ids = self._nodes.node_ids
        return tuple(
            WeighingNeighbourOut(
                node=ids[int(asked.neighbours[place])],
                weight=float(asked.weights[place]),
                contribution=float(added[place]),
            )
            for place in order.tolist()
        )

    def _write(
        self,
        asked: AskedNode,
        chances: Float64,
        fallback: LabelFallback | None,
        neighbours: Sequence[WeighingNeighbourOut],
    ) -> LabelOut:
        label = NO_LABEL if asked.row is None else int(self._nodes.labels[asked.row])
        best = int(chances.argmax())
        return LabelOut(
            node=asked.name,
            label=self.classes[best],
            probability=min(1.0, max(0.0, float(chances[best]))),
            probabilities={name: float(chance) for name, chance in zip(self.classes, chances, strict=True)},
            known_label=None if label == NO_LABEL else self.classes[label],
            fallback=fallback,
            unknown_neighbours=asked.unknown,
            neighbours=tuple(neighbours),
        )


def open_node_labels(serving: Path, published: Publication) -> NodeLabels:
    """Opens the answers about nodes from the published folders.

    Raises DataError for a damaged folder, or one that is not of the published graph.
    """
    found = NodeLabels(open_nodes(serving / published.shard))
    found.take_up(serving, published)
    return found
