"""Reads files of node graphs as one NodeShard over all nodes.

Formats: a pair of tables (nodes and edges) in any format of interactions, or a folder with both; GraphML; the `.npz`
files of Planetoid and of the heterophilous graphs of Platonov et al. (2023). A DataError names file and line, never
an id or a label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.events import row_numbers
from client_service.data.foreign_edges import ForeignEdges, build_foreign_edges
from client_service.data.id_columns import normalise_ids
from client_service.data.node_graphs import (
    SPLITS,
    TRAIN,
    UNKNOWN,
    UNLABELLED,
    VALID,
    Int64,
    NodeShard,
    build_adjacency,
    sort_entries,
)
from shared.errors import DataError, SettingsError
from shared.words import count_noun
from simulation.datasets.columns import FileOptions
from simulation.datasets.content import file_stem, format_extension
from simulation.datasets.formats import FORMATS, READ
from simulation.datasets.tables import MOST_NAMES, Table
from simulation.graphs.graphml import read_graphml
from simulation.graphs.npz import LARGEST, MOST_CLASSES, MOST_FEATURES, read_npz
from simulation.progress import step

SHARES = (0.2, 0.4, 0.4)  # of a silo's labelled nodes for training, validation and test, if the data have no split
NODE_STEMS, EDGE_STEMS = ("nodes", "accounts", "vertices"), ("edges", "links", "relations", "transactions")
FIELDS = {
    "node": ("node", "node_id", "nodeid", "id", "account", "account_id"),
    "label": ("label", "class", "y"),
    "split": ("split",),
    "source": ("source", "src", "from", "source_id"),
    "target": ("target", "dst", "to", "target_id"),
    "weight": ("weight",),
    "type": ("type", "edge_type", "relation"),
}
"""Usual column names of each field of both tables."""
NO_NUMBER = ("", "nan", "null", "none", "na")  # in lower case
NO_LABEL = ("", "unknown", "?", "nan", "null", "none", "na")  # in lower case
WHOLE_NUMBER = re.compile("-?[0-9]{1,30}")
LEAST_WEIGHT = 1e-30
MOST_VALUES = 50  # of a column of words that becomes columns of 0 and 1


@dataclass(frozen=True)
class GraphOptions(FileOptions):
    """Options of the files of a graph.

    values: by column, its words in the order of all silos; of `label`, the classes. shared_values: whether the words
    of columns, and the classes, may follow from this data alone: yes if one data set is divided among silos, no if a
    silo reads its own data for a federation.
    """

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shared_values: bool = True

    IDS: ClassVar = ("node", "source", "target")

    def names(self, role: str) -> tuple[str, ...]:
        """Lists the names, in lower case, of a field's column."""
        if role not in self.columns:
            return FIELDS.get(role, ())
        return (name,) if (name := self.columns[role].strip().lower()) else ()

    def is_id(self, name: str) -> bool:
        """Tells whether a column of this name holds ids."""
        return any(name in self.names(role) for role in self.IDS)

    def is_read(self, name: str) -> bool:
        """Accepts every column: each that is no field is a feature."""
        return bool(name)

    def is_attribute(self, name: str) -> bool:
        """Accepts every column: each that is no field is a feature."""
        return bool(name)


DEFAULT_OPTIONS = GraphOptions()


def add_shared_names(options: GraphOptions, features: Sequence[str], classes: Sequence[str]) -> GraphOptions:
    """Adds the classes, and words of columns, of a federation's names.

    A name `country=DE` stands for the word DE of the column country.
    """
    values = dict(options.values)
    words: dict[str, list[str]] = {}
    for name in features:
        column, mark, word = name.partition("=")
        if mark:
            words.setdefault(column, []).append(word)
    for column, shared in {**words, **({"label": list(classes)} if classes else {})}.items():
        if values.get(column, tuple(shared)) != tuple(shared):
            raise SettingsError(f"--values: expected none for {column!r}, whose words the federation names, got others")
        values[column] = tuple(shared)
    return replace(options, values=values)


def select_columns(graph: NodeShard, names: Sequence[str]) -> NodeShard:
    """Selects these columns of features, in this order.

    Raises DataError for a column that the graph does not have.
    """
    if not names or tuple(names) == tuple(graph.feature_names):
        return graph
    places = {name: place for place, name in enumerate(graph.feature_names)}
    if missing := [name for name in names if name not in places]:
        listed = ", ".join(missing[:MOST_NAMES]) + (
            f" and {len(missing) - MOST_NAMES} more" if missing[MOST_NAMES:] else ""
        )
        raise DataError(
            f"{graph.name}: expected the columns of features that all silos share, got none for {listed}:"
            " rename the columns of the file"
        )
    notes = graph.notes
    if unread := len(places) - len(names):
        notes = (*notes, f"{count_noun(unread, 'column')} of features that other silos do not have left out")
    taken = sparse.csr_array(graph.features[:, [places[name] for name in names]])
    return replace(graph, features=sort_entries(taken), feature_names=tuple(names), notes=notes)


@step("reading the graph")
def read_graph(
    path: Path, edges: Path | None = None, options: GraphOptions = DEFAULT_OPTIONS, *, official: int | None = None
) -> NodeShard:
    """Reads the graph of a file, a folder, or a pair of files.

    A split in a table is kept; else all labelled nodes are for training until `draw_splits` divides them. official:
    number of the split of a `.npz` file. Raises DataError for files that hold no graph.
    """
    nodes_path, edges_path = locate_graph(path, edges)
    if edges_path is not None:
        return read_tables(nodes_path, edges_path, options)
    if format_extension(nodes_path) == "npz":
        if options != DEFAULT_OPTIONS:
            raise SettingsError("--columns, --delimiter, --values: expected none with .npz, which has no columns")
        return read_npz(nodes_path, official)
    nodes, edge_table = read_graphml(nodes_path, options)
    return _build_graph(file_stem(nodes_path), nodes, edge_table, options)


def locate_graph(path: Path, edges: Path | None = None) -> tuple[Path, Path | None]:
    """Finds the files of nodes and of edges; None for one file of both.

    Raises DataError for a folder that lacks one.
    """
    if not path.exists() or (edges is not None and not edges.exists()):
        raise DataError(f"{edges if path.exists() else path}: expected a file or a folder, got nothing there")
    if edges is not None:
        return path, edges
    if path.is_dir():
        found = [find_table(path, stems) for stems in (NODE_STEMS, EDGE_STEMS)]
        for file, stems in zip(found, (NODE_STEMS, EDGE_STEMS), strict=True):
            if file is None:
                raise DataError(f"{path}: expected a file {stems[0]} ({READ}), got none of {', '.join(stems)}")
        return found[0] or path, found[1]
    if format_extension(path) in ("npz", "graphml", "xml"):
        return path, None
    if (beside := find_table(path.parent, EDGE_STEMS)) is None or file_stem(path).lower() in EDGE_STEMS:
        raise DataError(f"{path}: expected the nodes, with a file edges beside it or named by --edges, got no edges")
    return path, beside


def find_table(folder: Path, stems: Sequence[str]) -> Path | None:
    """Finds a folder's table by the first of these names."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and format_extension(file) in FORMATS)
    return next((file for stem in stems for file in files if file_stem(file).lower() == stem), None)


def is_graph(path: Path) -> bool:
    """Tells whether a path is a graph file, or a folder with both tables."""
    if path.is_dir():
        return all(find_table(path, stems[:1]) is not None for stems in (NODE_STEMS, EDGE_STEMS))
    return path.is_file() and format_extension(path) in ("npz", "graphml")


def read_tables(nodes_path: Path, edges_path: Path, options: GraphOptions = DEFAULT_OPTIONS) -> NodeShard:
    """Reads a table of nodes and one of edges.

    An edge to a node that the first table lacks is foreign: it leads to another silo.
    """
    nodes = _read_table(nodes_path, options, "node")
    edges = _read_table(edges_path, replace(options, needs_rows=False), "source")
    name = file_stem(nodes_path)
    return _build_graph(nodes_path.parent.name if name.lower() in NODE_STEMS else name, nodes, edges, options)


def _read_table(path: Path, options: GraphOptions, needed: str) -> Table:
    if format_extension(path) not in FORMATS:
        raise DataError(f"{path}: expected {READ}, got the extension {format_extension(path)!r}")
    found = FORMATS[format_extension(path)].read(path, options)
    words = {name: normalise_ids(one) if one.dtype == pl.String else one for name, one in found.columns.items()}
    table = replace(found, columns=words)
    table.read_ids(needed)
    return table


def _build_graph(name: str, nodes: Table, edges: Table, options: GraphOptions) -> NodeShard:
    ids = nodes.read_ids("node")
    if (again := len(ids) - ids.n_unique()) > 0:
        raise DataError(f"{nodes.path}: expected one row for each node, got {again:,} further rows of some")
    order = ids.arg_sort()
    ids = ids.gather(order)
    notes: list[str] = []
    adjacency, foreign = _read_edges(edges, ids, notes)
    labels, classes = _read_labels(nodes, options, notes)
    features, names = _read_features(nodes, options, notes)
    splits = _read_splits(nodes, labels)
    places = order.to_numpy()
    return NodeShard(
        name,
        tuple(ids),
        sort_entries(features[places]),
        names,
        adjacency,
        labels[places],
        classes,
        splits[places],
        tuple(notes),
        foreign,
    )


def _read_edges(edges: Table, ids: pl.Series, notes: list[str]) -> tuple[sparse.csr_array, ForeignEdges | None]:
    """Reads edges between the nodes, and foreign ones.

    With a column of weights, the weights of an edge that is listed several times, in either direction, add up;
    without, it counts once.
    """
    names = [edges.read_ids(role) for role in ("source", "target")]
    if not len(names[0]):
        notes.append("no edge: labels follow from each node's own features alone")
    table = pl.DataFrame({"low": names[0], "high": names[1], "weight": _read_weights(edges, len(names[0]))})
    weighted = edges.find_column("weight") is not None
    if (kinds := edges.find_column("type")) is not None and len(kinds):
        notes.append(f"edges of {count_noun(kinds.n_unique(), 'type')} are read as one graph")
    if count := int((table["low"] == table["high"]).sum()):
        notes.append(f"{count_noun(count, 'edge')} of a node to itself left out")
    table = table.filter(pl.col("low") != pl.col("high")).select(
        low=pl.min_horizontal("low", "high"), high=pl.max_horizontal("low", "high"), weight="weight"
    )
    summed = table.group_by("low", "high", maintain_order=True).agg(pl.col("weight").sum())
    if again := len(table) - len(summed):
        notes.append(
            f"{count_noun(again, 'edge')} listed again: {'weights add up' if weighted else 'each counts once'}"
        )
    wide = (summed["weight"].to_numpy() if weighted else np.ones(len(summed))).astype(np.float64)
    if not ((wide >= LEAST_WEIGHT) & (wide <= LARGEST)).all():
        raise DataError(
            f"{edges.path}: expected weights of edges from {LEAST_WEIGHT:g} to {LARGEST:g}, got others:"
            " use another unit"
        )
    weights = wide.astype(np.float32)
    lows, highs = (row_numbers(summed[name], ids) for name in ("low", "high"))
    inside, strange = (lows >= 0) & (highs >= 0), (lows < 0) & (highs < 0)
    if count := int(np.count_nonzero(strange)):
        notes.append(f"{count_noun(count, 'edge')} between nodes that the table of nodes does not have left out")
    foreign = ~inside & ~strange
    if count := int(np.count_nonzero(foreign)):
        notes.append(f"{count_noun(count, 'edge')} to nodes that the table of nodes does not have: foreign ones")
    outer = summed.filter(pl.Series(foreign)).select(
        pl.when(pl.Series(lows[foreign] < 0)).then("low").otherwise("high")
    )
    rows = np.maximum(lows, highs)[foreign]
    found = build_foreign_edges(rows, outer.to_series().to_list(), weights[foreign], len(ids))
    return build_adjacency(lows[inside], highs[inside], weights[inside], len(ids)), found


def _read_weights(edges: Table, count: int) -> NDArray[np.float64]:
    column = edges.find_column("weight")
    if column is None:
        return np.ones(count)
    expected = "a number above 0 in the field 'weight', got another or none"
    numbers = _parse_numbers(column)
    if numbers is None:
        edges.require_none(column.cast(pl.Float64, strict=False).is_null(), expected)
        raise DataError(f"{edges.path}: expected {expected}")
    edges.require_none((~(numbers > 0) | numbers.is_infinite()).fill_null(True), expected)
    found: NDArray[np.float64] = numbers.to_numpy().astype(np.float64)
    return found


def _parse_numbers(column: pl.Series) -> pl.Series | None:
    """Parses numbers, null for empty cells; None for words or dates."""
    texts = column
    if column.dtype == pl.String:
        texts = column.str.strip_chars()
        texts = texts.set(texts.str.to_lowercase().is_in(NO_NUMBER).fill_null(False), None)
        texts = texts.str.replace(r"^([+-]?\d+),(\d+)$", "${1}.${2}").replace(
            {"true": "1", "false": "0", "True": "1", "False": "0", "TRUE": "1", "FALSE": "0"}
        )
    if texts.dtype.is_temporal():
        return None
    numbers = texts.cast(pl.Float64, strict=False)
    return None if numbers.null_count() > texts.null_count() else numbers.fill_nan(None)


def _read_labels(nodes: Table, options: GraphOptions, notes: list[str]) -> tuple[Int64, tuple[str, ...]]:
    """Reads labels as rows of the classes, or UNKNOWN.

    The classes are those of --values, else the words that occur.
    """
    column = nodes.find_column("label")
    if column is None:
        raise DataError(f"{nodes.path}: expected a column label, got none; --columns label=NAME names another")
    words = normalise_ids(column.cast(pl.String))
    words = words.replace({"true": "1", "false": "0"}) if column.dtype == pl.Boolean else words
    unknown = words.is_null() | words.str.to_lowercase().is_in(NO_LABEL).fill_null(True)
    classes = options.values.get("label") or _order_words(words.filter(~unknown).unique().to_list())
    if len(classes) > MOST_CLASSES:
        raise DataError(
            f"{nodes.path}: expected up to {MOST_CLASSES} classes in the field 'label', got {len(classes):,}: is it"
            " another column? --columns label=NAME"
        )
    if len(classes) < 2:
        raise DataError(
            f"{nodes.path}: expected two classes or more in the field 'label', got {len(classes)}; --values"
            " label=A,B names those that this file lacks"
        )
    if "label" not in options.values and not options.shared_values:
        notes.append(f"classes, in this order: {', '.join(classes)}; --values label=A,B gives those of all silos")
    places = {word: place for place, word in enumerate(classes)}
    found = np.array(
        [UNKNOWN if none else places.get(word, -2) for word, none in zip(words, unknown, strict=True)], np.int64
    )
    nodes.require_none(
        pl.Series(found == -2),
        f"one of the {len(classes)} classes that --values names in the field 'label', got another",
    )
    if count := int(np.count_nonzero(found == UNKNOWN)):
        notes.append(f"{count_noun(count, 'node')} without a label: the labels of others predict theirs")
    return found, tuple(classes)


def _order_words(words: Sequence[str]) -> tuple[str, ...]:
    """Sorts words, as numbers if all are numbers."""
    if all(WHOLE_NUMBER.fullmatch(word) for word in words):
        return tuple(sorted(words, key=lambda word: (int(word), word)))
    return tuple(sorted(words))


def _read_splits(nodes: Table, labels: Int64) -> NDArray[np.int8]:
    column = nodes.find_column("split")
    found = np.where(labels == UNKNOWN, UNLABELLED, TRAIN).astype(np.int8)
    if column is None:
        return found
    named = {word: place for place, word in enumerate(SPLITS)} | {"val": VALID, "validation": VALID, "": UNLABELLED}
    given = np.array([named.get((word or "").lower(), -1) for word in column.cast(pl.String)], np.int8)
    nodes.require_none(pl.Series(given < 0), "train, valid, test or nothing in the field 'split', got another")
    nodes.require_none(
        pl.Series((given == UNLABELLED) & (labels != UNKNOWN)),
        "train, valid or test in the field 'split' of a node with a label, got none",
    )
    return np.where(labels == UNKNOWN, UNLABELLED, given).astype(np.int8)


def _read_features(nodes: Table, options: GraphOptions, notes: list[str]) -> tuple[sparse.csr_array, tuple[str, ...]]:
    """Reads numbers as they are, and words as columns of 0 and 1.

    A missing number is 0.
    """
    fields = {name for role in ("node", "label", "split") for name in options.names(role)[:1] if name in nodes.columns}
    fields |= {name for role in ("node", "label", "split") if (name := nodes.column_name(role)) is not None}
    blocks, names, missing = list[Any](), list[str](), 0
    for name, column in nodes.columns.items():
        if name in fields:
            continue
        if name in options.values:
            words = normalise_ids(column.cast(pl.String))
            blocks.append(_mark_words(words, options.values[name]))
            names += [f"{name}={value}" for value in options.values[name]]
            continue
        numbers = _parse_numbers(column)
        if numbers is not None:
            missing += numbers.null_count()
            wide = numbers.fill_null(0.0).to_numpy().astype(np.float64)
            large = pl.Series(~(np.abs(wide) <= LARGEST))
            nodes.require_none(large, f"a finite number up to {LARGEST:g} in column {name!r}, got another")
            values = wide.astype(np.float32)
            blocks.append(sparse.csr_array(values[:, None]))
            names.append(name)
            continue
        words = normalise_ids(column.cast(pl.String))
        values_of = _order_words([word for word in words.drop_nulls().unique().to_list() if word])
        if not options.shared_values or len(values_of) > MOST_VALUES:
            nodes.require_none(
                pl.Series([True]),
                f"numbers in column {name!r}, got words ({len(values_of):,} different): name those that become columns"
                f" of 0 and 1 by --values {name}=A,B, or leave the column out of the file",
            )
        blocks.append(_mark_words(words, values_of))
        names += [f"{name}={value}" for value in values_of]
    if missing:
        notes.append(f"{count_noun(missing, 'missing number')} of features read as 0")
    if not blocks:
        notes.append("no column of features: labels follow from edges alone")
        return sparse.csr_array(np.ones((len(nodes.line), 1), np.float32)), ("constant",)
    if len(names) > MOST_FEATURES:
        raise DataError(f"{nodes.path}: expected at most {MOST_FEATURES:,} features, got {len(names):,}")
    return sparse.csr_array(sparse.hstack(blocks, format="csr"), dtype=np.float32), tuple(names)


def _mark_words(words: pl.Series, values: Sequence[str]) -> sparse.csr_array:
    """Marks the column of each row's word by 1, (n, values); other words give zeros."""
    places = {value: place for place, value in enumerate(values)}
    found = np.array([places.get(word or "", -1) for word in words], np.int64)
    rows = np.flatnonzero(found >= 0)
    ones = np.ones(len(rows), np.float32)
    return sparse.csr_array(sparse.coo_array((ones, (rows, found[rows])), shape=(len(words), len(values))))
