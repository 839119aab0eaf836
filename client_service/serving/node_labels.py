"""Labels of nodes: calibrated probabilities and the neighbours that weigh most, by a compiled model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from client_service.compiled.nodes import (
    CompiledNodeModel,
    CompiledNodes,
    Float32,
    Float64,
    Int64,
    Neighbourhood,
    NodePowers,
    join_node,
    open_node_model,
    open_nodes,
)
from client_service.compiled.publication import Publication
from client_service.event_log.messages import MOST_EDGES
from client_service.event_log.node_overlay import NodeOverlay
from client_service.serving.model_server import ModelServer
from client_service.serving.node_messages import (
    LABEL_SCORE,
    MOST_NEIGHBOURS,
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

CLOSED_FORM: Final[LabelFallback] = "the closed form, for the network scores no changed nodes"


@dataclass(frozen=True)
class NodeQuery:
    """Node of a request.

    row: in the graph, None for a new node. name: its id, if given. neighbours: rows and weights of its edges to nodes
    of the graph. later: ids and weights of edges to nodes that were added since. changed: whether its features or
    edges differ from the graph. features: columns and values, None as in the graph. unknown: neighbours of the
    request that the silo does not have.
    """

    row: int | None
    name: str | None
    neighbours: Int64
    weights: Float64
    later: Mapping[str, float]
    changed: bool
    features: tuple[Int64, Float64] | None = None
    unknown: int = 0


class NodeLabels(ModelServer):
    """Answers nodes from one `CompiledNodeModel` at a time.

    Without a model it answers shares of the training labels.
    """

    score_meaning = LABEL_SCORE
    overlay: NodeOverlay

    def __init__(self, nodes: CompiledNodes, compile_model: Callable[[Any], CompiledNodeModel] | None = None) -> None:
        """Opens answers about nodes, without a model yet.

        compile_model: compiles a model that is assigned to `served`; None: an assigned model answers as it is.
        """
        super().__init__()
        self.overlay = NodeOverlay(nodes)
        self._nodes, self._compile_model = nodes, compile_model
        self._served: CompiledNodeModel | None = None

    @property
    def served(self) -> CompiledNodeModel | None:
        """Model that answers, or None before there is one."""
        return self._served

    @served.setter
    def served(self, model: Any) -> None:
        self._served = model if model is None or self._compile_model is None else self._compile_model(model)

    def with_model(self, serving: Path, published: Publication) -> NodeLabels:
        """Replaces the model by another published one of the same graph.

        Raises DataError for a damaged folder, or one of another graph.
        """
        folder = published.model
        self._served = None if folder is None else open_node_model(serving / folder, self._nodes)
        return self

    @property
    def known_users(self) -> int:
        """Number of nodes in the compiled graph that are not erased."""
        return self.overlay.known_nodes

    @property
    def nodes(self) -> CompiledNodes:
        """Graph that answers."""
        return self._nodes

    @property
    def shown_items(self) -> int:
        """Number of classes that a label can be of."""
        return len(self._nodes.head.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self._nodes.head.classes

    def answer(self, asked: LabelsIn) -> LabelListOut:
        """Labels each node, in the order of the request.

        NotFoundError for unknown ids, ProtocolError for features that the silo does not have, and for nodes with too
        many posted edges together; none quotes any.
        """
        self.overlay.follow()
        if len(asked.nodes) > 1 and (edges := self.count_edges(asked)) > MOST_EDGES:
            words = f"expected nodes with at most {MOST_EDGES:,} edges of the request and of the log together"
            raise ProtocolError(f"body.nodes: {words}, got {edges:,}: ask for fewer nodes at once")
        served, known = (
            self.served,
            {one: self._read(one) for one in {one for one in asked.nodes if isinstance(one, str)}},
        )
        nodes = [known[one] if isinstance(one, str) else self._read(one) for one in asked.nodes]
        missing = sum(one is None for one in nodes)
        if missing:
            words = "expected ids of nodes of the silo, or features of new ones"
            raise NotFoundError(f"{words}, got {count_noun(missing, 'unknown id')} of {count_noun(len(nodes), 'node')}")
        # a node that comes again, in the request or as a neighbour that came since, is computed once
        later: dict[str, tuple[Float32, float]] = {}
        labels = {key: self._label(served, one, later) for key, one in {id(one): one for one in nodes if one}.items()}
        results = tuple(labels[id(one)] for one in nodes)
        if served is None:
            return LabelListOut(results=results)
        joining = JoiningOut(**served.head.joining.model_dump())
        return LabelListOut(model=served.version, joining=joining, results=results)

    def count_edges(self, asked: LabelsIn) -> int:
        """Counts the edges that an answer visits: those of the request, and posted ones."""
        posted = {one for one in asked.nodes if isinstance(one, str)}
        described = [one.node for one in asked.nodes if isinstance(one, NodeIn) and one.neighbours is None]
        named = (*posted, *(node for node in described if node is not None))
        return asked.edges + sum(min(len(self.overlay.links(node)), MOST_NEIGHBOURS) for node in named)

    def _read(self, asked: str | NodeIn) -> NodeQuery | None:
        """Finds a node of the request; None for an unknown id that is not described."""
        described = NodeIn(node=asked) if isinstance(asked, str) else asked
        name = described.node
        posted = None if name is None else self.overlay.facts(name)
        row = None if name is None else self.overlay.row(name)
        features = None if described.features is None else self._read_features(described.features)
        changed = features is not None or row is None or self.overlay.has_changed(row)
        if features is None and posted is not None and posted.features is not None:
            features = self._read_features(posted.features)
        if row is None and features is None:
            return None
        if described.neighbours is None:
            links = {} if name is None else self.overlay.links(name)
            if len(links) > MOST_NEIGHBOURS:  # the others count from the next refresh on
                links = dict(islice(links.items(), MOST_NEIGHBOURS))
            places, weights, later = self._find_edges(row, links)
            return NodeQuery(row, name, places, weights, later, changed, features)
        links = {one.node: one.weight for one in described.neighbours if one.node != name}
        places, weights, later = self._find_edges(None, links)
        unknown = len(links) - len(places) - len(later)
        return NodeQuery(row, name, places, weights, later, True, features, unknown)

    def _find_edges(self, row: int | None, links: Mapping[str, float]) -> tuple[Int64, Float64, dict[str, float]]:
        """Finds a node's edges to nodes of the graph, and to nodes added since.

        Returns rows and weights of the former, ids and weights of the latter. row: whose edges in the graph count,
        without those to erased nodes. links: weights that override them.
        """
        edges: dict[int, float] = {}
        if row is not None:
            known, weights = self._nodes.edges.row(row)
            erased = self.overlay.is_erased(known)
            if erased is None and not links:
                return known, weights.astype(np.float64), {}
            kept = slice(None) if erased is None else ~erased
            edges = dict(zip(known[kept].tolist(), weights[kept].tolist(), strict=True))
        later: dict[str, float] = {}
        for other, weight in links.items():
            place = self.overlay.row(other)
            if place is not None and place != row:
                edges[place] = weight
            elif place is None and weight > 0 and self.overlay.facts(other).features is not None:
                later[other] = weight
        found = sorted((place, weight) for place, weight in edges.items() if weight > 0)
        rows = np.array([place for place, _ in found], dtype=np.int64)
        return rows, np.array([weight for _, weight in found], dtype=np.float64), later

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

    def _label(
        self, served: CompiledNodeModel | None, asked: NodeQuery, later: dict[str, tuple[Float32, float]]
    ) -> LabelOut:
        if served is None:
            return self._write(asked, self._nodes.shares, "no model yet", ())
        with np.errstate(all="ignore"):
            joined = self._join(served, asked, later)
            if asked.row is not None and not asked.changed:
                chances = served.probabilities[asked.row].astype(np.float64)
            else:
                chances = served.scorer.calibrate(served.scorer.score(joined.powers[None]))[0]
        if not np.isfinite(chances).all():
            return self._write(asked, self._nodes.shares, "the model's scores are no numbers", ())
        other = CLOSED_FORM if served.head.of_known_alone and asked.changed else None
        return self._write(asked, chances, other, self._rank_neighbours(served, asked, joined, int(chances.argmax())))

    def _join(self, served: CompiledNodeModel, asked: NodeQuery, later: dict[str, tuple[Float32, float]]) -> NodePowers:
        """Computes P^k x of a node, and each neighbour's part.

        later: P^k x and degrees of nodes outside the graph, which grows. Neighbours in the graph come first, then those
        that came since.
        """
        rows, row = asked.neighbours, asked.row
        if row is not None and not asked.changed:
            return served.read_node_powers(row, rows, asked.weights)
        around = self._read_neighbours(served, row, rows, asked.weights)
        if asked.later:
            for node in asked.later.keys() - later.keys():
                later[node] = self._join_posted_neighbour(served, node)
            joined = [later[node] for node in asked.later]
            around = Neighbourhood(
                np.concatenate([around.powers, np.stack([powers for powers, _ in joined])]),
                np.append(around.degrees, [degree for _, degree in joined]),
                np.append(around.weights, list(asked.later.values())),
                np.append(around.before, np.zeros(len(joined))),
            )
        if asked.features is not None:
            own = served.project(*asked.features)
        else:
            own = served.powers[row, 0].astype(np.float64)
        if row is None:
            return join_node(own, around)
        return join_node(own, around, served.compiled_node(row))

    def _read_neighbours(
        self, served: CompiledNodeModel, row: int | None, rows: Int64, weights: Float64
    ) -> Neighbourhood:
        """Collects the neighbours in the graph, with features that were posted since."""
        before = np.zeros(len(rows))
        if row is not None:
            known, own = self._nodes.edges.row(row)
            places = np.searchsorted(known, rows)
            inside = places < len(known)
            inside[inside] = known[places[inside]] == rows[inside]
            before[inside] = own[places[inside]]
        found = served.neighbourhood(rows, weights, before)
        for place, one in enumerate(rows.tolist()):
            if self.overlay.has_changed(one):
                features = self.overlay.facts(self._nodes.node_ids[one]).features
                if features is not None:
                    found.powers[place, 0] = served.project(*self._read_features(features))
        return found

    def _join_posted_neighbour(self, served: CompiledNodeModel, node: str) -> tuple[Float32, float]:
        """Computes P^k x and the degree of a posted node from its neighbours."""
        features, links = self.overlay.facts(node).features, self.overlay.links(node)
        assert features is not None, "only neighbours with features are joined"
        rows, weights, _ = self._find_edges(None, links)
        joined = join_node(
            served.project(*self._read_features(features)), self._read_neighbours(served, None, rows, weights)
        )
        return joined.powers.astype(np.float32), float(weights.sum())

    def _rank_neighbours(
        self, served: CompiledNodeModel, asked: NodeQuery, joined: NodePowers, column: int
    ) -> tuple[WeighingNeighbourOut, ...]:
        """Ranks neighbours by what they add to the score of a class."""
        if not len(joined.parts):
            return ()
        slopes = served.scorer.score_gradient(joined.powers, column)
        added = np.tensordot(joined.parts, slopes[1:], axes=2)
        order = np.argsort(-np.abs(added), kind="stable")[:MOST_SHOWN]
        ids, later = self._nodes.node_ids, list(asked.later.items())
        count = len(asked.neighbours)
        edges = (
            (ids[int(asked.neighbours[place])], float(asked.weights[place])) if place < count else later[place - count]
            for place in order.tolist()
        )
        return tuple(
            WeighingNeighbourOut(node=node, weight=weight, contribution=float(added[place]))
            for (node, weight), place in zip(edges, order.tolist(), strict=True)
        )

    def _write(
        self,
        asked: NodeQuery,
        chances: Float64,
        fallback: LabelFallback | None,
        neighbours: Sequence[WeighingNeighbourOut],
    ) -> LabelOut:
        best = int(chances.argmax())
        return LabelOut(
            node=asked.name,
            label=self.classes[best],
            probability=min(1.0, max(0.0, float(chances[best]))),
            probabilities={name: float(chance) for name, chance in zip(self.classes, chances, strict=True)},
            known_label=self.overlay.label(asked.name, asked.row),
            fallback=fallback,
            unknown_neighbours=asked.unknown,
            neighbours=tuple(neighbours),
        )


def open_node_labels(serving: Path, published: Publication) -> NodeLabels:
    """Opens the answers about nodes from the published folders.

    Raises DataError for a damaged folder, or one that is not of the published graph.
    """
    found = NodeLabels(open_nodes(serving / published.shard))
    return found.with_model(serving, published)
