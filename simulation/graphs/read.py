"""Reads files of node graphs as one NodeShard over all nodes.

DataError with file and line, never an id or a label.

A pair of tables (nodes and edges) in any format that is read of interactions, or a folder with both; GraphML; or the
`.npz` files in which Planetoid and the heterophilous graphs of Platonov et al. (2023) are handed on.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar
from xml.parsers import expat
from zipfile import BadZipFile

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.events import row_numbers
from client_service.data.files import decode_text, require_text_memory
from client_service.data.foreign_edges import ForeignEdges, build_foreign_edges
from client_service.data.id_columns import normalise_ids
from client_service.data.node_graphs import (
    SPLITS,
    TEST,
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
from simulation.datasets.content import file_stem, format_extension, read_content
from simulation.datasets.formats import FORMATS, READ
from simulation.datasets.tables import MOST_NAMES, Table
from simulation.progress import step

SHARES = (0.2, 0.4, 0.4)  # of a silo's labelled nodes for training, validation and test, where the data bring no split
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
"""Fields of both tables -> the usual names of their columns."""
NO_NUMBER = ("", "nan", "null", "none", "na")  # in lower case
NO_LABEL = ("", "unknown", "?", "nan", "null", "none", "na")  # in lower case
WHOLE_NUMBER = re.compile("-?[0-9]{1,30}")
LARGEST = 1e30  # of a feature, and of the weight of an edge: float32 has room for sums of them
LEAST_WEIGHT = 1e-30
NO_ARRAYS = (OSError, ValueError, LookupError, TypeError, EOFError, MemoryError, BadZipFile, zlib.error)
"""What numpy raises for files that are no arrays, are damaged, or say that they are larger than memory."""
MOST_CLASSES = 100  # of labels; more are taken for another column
MOST_VALUES = 50  # of a column of words that becomes columns of 0 and 1
MOST_FEATURES = 1 << 20


@dataclass(frozen=True)
class GraphOptions(FileOptions):
    """Options of the files of a graph.

    values: column -> the words of it that count, in their order, in all silos alike; of `label`, the classes.
    shared_values: may the columns of words, and the classes, follow from this data alone, as where one data set is
    divided? A silo that reads its own data for a federation may not.
    """

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shared_values: bool = True

    IDS: ClassVar = ("node", "source", "target")

    def names(self, of: str) -> tuple[str, ...]:
        """Lists the names, in lower case, of a field's column."""
        if of not in self.columns:
            return FIELDS.get(of, ())
        return (name,) if (name := self.columns[of].strip().lower()) else ()

    def is_id(self, name: str) -> bool:
        """Checks if a column of this name holds ids."""
        return any(name in self.names(of) for of in self.IDS)

    def is_read(self, name: str) -> bool:
        """Accepts every column: what is no field is a feature."""
        return bool(name)

    def is_attribute(self, name: str) -> bool:
        """Accepts every column: what is no field is a feature."""
        return bool(name)


AS_NAMED = GraphOptions()


def with_shared_names(options: GraphOptions, features: Sequence[str], classes: Sequence[str]) -> GraphOptions:
    """Adds the words that a federation's names say: classes, and words of columns.

    A name `country=DE` says the word DE of the column country.
    """
    values = dict(options.values)
    words: dict[str, list[str]] = {}
    for name in features:
        column, mark, word = name.partition("=")
        if mark:
            words.setdefault(column, []).append(word)
    for column, said in {**words, **({"label": list(classes)} if classes else {})}.items():
        if values.get(column, tuple(said)) != tuple(said):
            raise SettingsError(f"--values: expected none for {column!r}, whose words the federation says, got others")
        values[column] = tuple(said)
    return replace(options, values=values)


def take_columns(graph: NodeShard, names: Sequence[str]) -> NodeShard:
    """Selects these columns of features, in this order.

    DataError for a column that the graph does not have.
    """
    if not names or tuple(names) == tuple(graph.feature_names):
        return graph
    places = {name: place for place, name in enumerate(graph.feature_names)}
    if missing := [name for name in names if name not in places]:
        told = ", ".join(missing[:MOST_NAMES]) + (
            f" and {len(missing) - MOST_NAMES} more" if missing[MOST_NAMES:] else ""
        )
        raise DataError(
            f"{graph.name}: expected the columns of features that all silos share, got none for {told}: name the"
            " columns of the file so"
        )
    notes = graph.notes
    if unread := len(places) - len(names):
        notes = (*notes, f"{count_noun(unread, 'column')} of features that other silos do not have left out")
    taken = sparse.csr_array(graph.features[:, [places[name] for name in names]])
    return replace(graph, features=sort_entries(taken), feature_names=tuple(names), notes=notes)


@step("reading the graph")
def read_graph(
    path: Path, edges: Path | None = None, options: GraphOptions = AS_NAMED, *, official: int | None = None
) -> NodeShard:
    """Reads the whole graph of a file, of a folder, or of a pair of files.

    A split that a table brings is kept; else all labelled nodes are for training until `draw_splits` divides them.
    official: which of the splits of a `.npz` file. DataError for what is no graph.
    """
    nodes_path, edges_path = locate_graph(path, edges)
    if edges_path is not None:
        return read_tables(nodes_path, edges_path, options)
    if options != AS_NAMED and format_extension(nodes_path) == "npz":
        raise SettingsError("--columns, --delimiter, --values: expected none with .npz, which has no columns")
    if format_extension(nodes_path) == "npz":
        return read_npz(nodes_path, official)
    return read_graphml(nodes_path, options)


def locate_graph(path: Path, edges: Path | None = None) -> tuple[Path, Path | None]:
    """Finds the file of nodes and that of edges; None for a file of both.

    DataError for a folder that lacks one.
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


def holds_graph(path: Path) -> bool:
    """Checks if a path is a graph by its name, or a folder with both tables."""
    if path.is_dir():
        return all(find_table(path, stems[:1]) is not None for stems in (NODE_STEMS, EDGE_STEMS))
    return path.is_file() and format_extension(path) in ("npz", "graphml")


def read_npz(path: Path, official: int | None = None) -> NodeShard:
    """Reads a graph of Planetoid, or a heterophilous one.

    Planetoid has features as CSR, `y` and `train_idx`, the other `node_features` and ten masks.
    """
    try:
        # a stream of our own, because numpy leaves the file of a damaged one open
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        planetoid = "x_data" in arrays
        labels = np.asarray(arrays["y" if planetoid else "node_labels"]).reshape(-1)
        if planetoid:
            parts = tuple(arrays[name] for name in ("x_data", "x_indices", "x_indptr"))
            features = sparse.csr_array(parts, shape=tuple(arrays["x_shape"]), dtype=np.float32)
        else:
            given = arrays["node_features"].reshape(len(labels), -1)
            features = sparse.csr_array(given.astype(np.float32, casting="same_kind", copy=False))
        features.check_format(full_check=True)
        features.sum_duplicates()
        labels = np.where(np.isfinite(labels), labels, UNKNOWN).astype(np.int64)
        edges = arrays["edges"].astype(np.int64).reshape(-1, 2)
    except NO_ARRAYS:
        keys = "edges and either x_data, x_indices, x_indptr, x_shape, y or node_features, node_labels"
        raise DataError(f"{path}: expected the arrays {keys}, got something else") from None
    nodes, columns = features.shape
    if not nodes or len(labels) != nodes or (len(edges) and not (edges.min() >= 0 and edges.max() < nodes)):
        raise DataError(f"{path}: expected a label for each of {nodes:,} nodes, and edges between these, got others")
    if not 1 <= columns <= MOST_FEATURES or int(labels.max()) >= MOST_CLASSES:
        sizes = f"{columns:,} features and labels up to {int(labels.max()):,}"
        raise DataError(
            f"{path}: expected 1 to {MOST_FEATURES:,} features, and labels from 0 to {MOST_CLASSES - 1}, got {sizes}"
        )
    if not (np.abs(features.data) <= LARGEST).all():
        raise DataError(f"{path}: expected features up to {LARGEST:g}, got others: use another unit")
    digits = len(str(max(nodes - 1, 0)))
    splits = np.full(nodes, TRAIN, np.int8) if official is None else _official_split(path, arrays, nodes, official)
    labels = np.where(splits == UNLABELLED, UNKNOWN, np.maximum(labels, UNKNOWN))
    weights = np.ones(len(edges), np.float32)
    return NodeShard(
        file_stem(path),
        tuple(f"{number:0{digits}d}" for number in range(nodes)),
        sort_entries(features),
        tuple(f"feature-{number}" for number in range(features.shape[1])),
        build_adjacency(edges[:, 0], edges[:, 1], weights, nodes),
        labels,
        tuple(str(number) for number in range(max(2, int(labels.max(initial=0)) + 1))),
        np.where(labels == UNKNOWN, UNLABELLED, splits).astype(np.int8),
        notes=() if official is None else (f"split {official} of those that come with the data",),
    )


def _official_split(path: Path, arrays: Mapping[str, Any], nodes: int, number: int) -> NDArray[np.int8]:
    """Reads one of the file's own splits.

    A node that is in no part of the split counts as one without a label.
    """
    masks = "train_masks" in arrays
    names = ("train_masks", "val_masks", "test_masks") if masks else ("train_idx", "val_idx", "test_idx")
    parts = [arrays[name] for name in names if name in arrays]
    if len(parts) < len(names):
        raise DataError(f"{path}: expected the arrays {', '.join(names)} of a split, got {len(parts)} of them")
    if any(
        part.dtype != bool or part.shape[1:] != (nodes,)
        if masks
        else part.dtype.kind not in "iu" or (part < 0).any() or (part >= nodes).any()
        for part in parts
    ):
        words = "masks of a row for each split" if masks else "rows of nodes"
        raise DataError(f"{path}: expected in {', '.join(names)} {words} over {nodes:,} nodes, got others")
    count = min(map(len, parts)) if masks else 1
    if not 0 <= number < count:
        raise SettingsError(f"official split: expected one of 0 to {count - 1} of {path.name}, got {number}")
    found = np.full(nodes, UNLABELLED, np.int8)
    for part, split in zip(parts, (TRAIN, VALID, TEST), strict=True):
        found[part[number] if masks else part] = split
    return found


def read_tables(nodes_path: Path, edges_path: Path, options: GraphOptions = AS_NAMED) -> NodeShard:
    """Reads a table of nodes and one of edges.

    An edge to a node that the first table does not have is foreign: another silo's.
    """
    nodes, edges = _read_table(nodes_path, options, "node"), _read_table(edges_path, options, "source")
    name = file_stem(nodes_path)
    return _build_graph(nodes_path.parent.name if name.lower() in NODE_STEMS else name, nodes, edges, options)


def _read_table(path: Path, options: GraphOptions, needed: str) -> Table:
    if format_extension(path) not in FORMATS:
        raise DataError(f"{path}: expected {READ}, got the extension {format_extension(path)!r}")
    found = FORMATS[format_extension(path)].read(path, options)
    words = {name: normalise_ids(one) if one.dtype == pl.String else one for name, one in found.columns.items()}
    table = replace(found, columns=words)
    table.ids_of(needed)
    return table


def _build_graph(name: str, nodes: Table, edges: Table, options: GraphOptions) -> NodeShard:
    ids = nodes.ids_of("node")
    if (again := len(ids) - ids.n_unique()) > 0:
        raise DataError(f"{nodes.path}: expected one row for each node, {again:,} rows have a node again")
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

    With a column of weights, those of an edge that is listed again, in either direction, add up; without, such an edge
    counts once.
    """
    names = [edges.ids_of(of) for of in ("source", "target")]
    table = pl.DataFrame({"low": names[0], "high": names[1], "weight": _read_weights(edges, len(names[0]))})
    weighted = edges.find_column("weight") is not None
    if (kinds := edges.find_column("type")) is not None:
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
    """Parses numbers, null where nothing stands; None for words or dates."""
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

    The classes are those that --values says, else the words that occur.
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
        f"one of the {len(classes)} classes that --values says in the field 'label', got another",
    )
    if count := int(np.count_nonzero(found == UNKNOWN)):
        notes.append(f"{count_noun(count, 'node')} without a label, which others' labels answer for")
    return found, tuple(classes)


def _order_words(words: Sequence[str]) -> tuple[str, ...]:
    """Sorts words, as numbers where all are numbers."""
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

    A number that is missing is 0.
    """
    fields = {name for of in ("node", "label", "split") for name in options.names(of)[:1] if name in nodes.columns}
    fields |= {name for of in ("node", "label", "split") if (name := nodes.name_of(of)) is not None}
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
                f"numbers in column {name!r}, got words ({len(values_of):,} different): --values {name}=A,B says which"
                f" become columns of 0 and 1, --columns {name}= is no field; leave the column out of the file else",
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


def read_graphml(path: Path, options: GraphOptions = AS_NAMED) -> NodeShard:
    """Reads GraphML: `data` of nodes and edges are columns by their keys' names.

    Directions do not count.
    """
    file = GraphmlFile()
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = file.begin, file.end
    parser.CharacterDataHandler = file.add_text
    file.line_of = lambda: parser.CurrentLineNumber
    content = read_content(path)
    require_text_memory(path, decode_text(path, content), "<")

    def refuse(*declared: object) -> None:
        del declared
        raise DataError(f"{path}: expected GraphML without a DOCTYPE, got one: its entities could fill the memory")

    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(content, True)
    except expat.ExpatError as error:
        raise DataError(f"{path}: line {error.lineno}: expected GraphML, got what is no XML") from None
    except (LookupError, ValueError):  # of an encoding that the parser does not know
        raise DataError(f"{path}: expected GraphML in UTF-8, got another encoding: save it as UTF-8") from None
    nodes, edges = (file.table(path, kind, options) for kind in ("node", "edge"))
    return _build_graph(file_stem(path), nodes, edges, options)


class GraphmlFile:
    """Collects nodes and edges of a GraphML file as its parser meets them."""

    def __init__(self) -> None:
        self.line_of: Any = None
        self._rows: dict[str, list[dict[str, str]]] = {"node": [], "edge": []}
        self._lines: dict[str, list[int]] = {"node": [], "edge": []}
        self._names: dict[str, str] = {}
        self._usual: dict[str, dict[str, str]] = {"node": {}, "edge": {}}
        self._open: dict[str, str] | None = None
        self._key = ""
        self._text: list[str] | None = None

    def begin(self, tag: str, values: dict[str, str]) -> None:
        """Takes the start of an element."""
        name = tag.rpartition(":")[2]
        if name == "key":
            self._key = values.get("id", "")
            self._names[self._key] = values.get("attr.name", self._key).strip().lower()
            self._open = self._usual.get(values.get("for", ""), {})
        elif name in self._rows:
            ends = ("id",) if name == "node" else ("source", "target")
            self._open = {f"\0{end}": values.get(end, "") for end in ends}
            self._rows[name].append(self._open)
            self._lines[name].append(self.line_of())
        elif name in ("data", "default"):
            self._key = values.get("key", self._key)
            self._text = []

    def end(self, tag: str) -> None:
        """Takes the end of an element."""
        name = tag.rpartition(":")[2]
        if name in ("data", "default") and self._text is not None:
            if self._open is not None:
                self._open[self._names.get(self._key, self._key)] = "".join(self._text)
            self._text = None
        elif name in ("node", "edge", "key"):
            self._open = None

    def add_text(self, text: str) -> None:
        """Takes text between tags."""
        if self._text is not None:
            self._text.append(text)

    def table(self, path: Path, kind: str, options: GraphOptions) -> Table:
        """Returns all nodes, or all edges, each with its line.

        Ends and ids stand under the names of their fields.
        """
        rows, usual = self._rows[kind], self._usual[kind]
        if not rows and kind == "node":
            raise DataError(f"{path}: expected GraphML with nodes, got none")
        fields = {"\0id": "node", "\0source": "source", "\0target": "target"}
        ends = ("\0id",) if kind == "node" else ("\0source", "\0target")
        names = dict.fromkeys([*ends, *usual, *(name for row in rows for name in row)])
        columns = {name: pl.Series([row.get(name, usual.get(name)) for row in rows], dtype=pl.String) for name in names}
        found = {
            fields.get(name, name): column.str.strip_chars() for name, column in columns.items() if name not in ends
        }
        own = {fields[name]: normalise_ids(columns[name]) for name in ends}
        columns_said = {of: name for of, name in options.columns.items() if of not in own}
        return Table(
            path, found | own, pl.Series(self._lines[kind], dtype=pl.Int64), replace(options, columns=columns_said)
        )
