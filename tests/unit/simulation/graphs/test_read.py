"""Files of node graphs: what is read of them, and what odd ones are refused for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from client_service.data.node_files import load_node_shard, save_node_shard
from client_service.data.node_graphs import TEST, TRAIN, UNKNOWN, UNLABELLED, VALID
from shared.errors import DataError, SettingsError
from simulation.graphs.read import GraphOptions, is_graph, read_graph

NODES = "node,label,amount,country\nb,fraud,1.5,DE\na,ok,2,FR\nc,,,DE\nd,ok,4,\n"
EDGES = "source,target\na,b\nb,a\nb,c\na,a\nc,elsewhere\nx,y\n"


def write_tables(folder: Path, nodes: str = NODES, edges: str = EDGES) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "nodes.csv").write_text(nodes, encoding="utf-8")
    (folder / "edges.csv").write_text(edges, encoding="utf-8")
    return folder


def write_npz(path: Path, **changes: Any) -> Path:
    masks = np.array([[True, True, False, False], [False, False, True, True]])
    arrays = {
        "node_features": np.arange(8, dtype=np.float32).reshape(4, 2),
        "node_labels": np.array([0, 1, 0, 1]),
        "edges": np.array([[0, 1], [1, 2], [2, 3]]),
        "train_masks": masks,
        "val_masks": masks[::-1] & [True, False, True, False],
        "test_masks": masks[::-1] & [False, True, False, True],
    }
    np.savez(path, **{name: one for name, one in {**arrays, **changes}.items() if one is not None})
    return path


def test_a_pair_of_tables_is_a_graph(tmp_path: Path) -> None:
    found = read_graph(write_tables(tmp_path / "bank"))
    assert (found.name, tuple(found.node_ids), tuple(found.classes)) == ("bank", ("a", "b", "c", "d"), ("fraud", "ok"))
    assert found.labels.tolist() == [1, 0, UNKNOWN, 1]
    assert found.splits.tolist() == [TRAIN, TRAIN, UNLABELLED, TRAIN]
    assert found.feature_names == ("amount", "country=DE", "country=FR")
    assert found.dense_features.tolist() == [[2, 0, 1], [1.5, 1, 0], [0, 1, 0], [4, 0, 0]]
    assert found.adjacency.toarray().tolist() == [[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    told = "\n".join(found.notes)
    assert "1 edge to nodes that the table of nodes does not have: foreign" in told
    assert "1 edge between nodes that the table of nodes does not have left out" in told
    assert found.foreign is not None
    assert found.foreign.list_edges(found.node_ids).rows() == [("c", "elsewhere", 1.0)]
    assert "1 edge of a node to itself left out" in told
    assert "1 edge listed again" in told
    assert "1 missing number of features read as 0" in told
    save_node_shard(tmp_path / "shard", found)
    assert load_node_shard(tmp_path / "shard").digest == found.digest


@pytest.mark.parametrize("header", ["source,target\n", "from;to;weight", "src\tdst\ttype\n"])
def test_edges_of_a_header_alone_are_none_and_said(tmp_path: Path, header: str) -> None:
    found = read_graph(write_tables(tmp_path / "bank", edges=header))
    assert found.edges == 0 and found.foreign is None and len(found.node_ids) == 4
    assert [note for note in found.notes if "edge" in note] == [
        "no edge: labels follow from each node's own features alone"
    ]
    save_node_shard(tmp_path / "shard", found)
    assert load_node_shard(tmp_path / "shard").digest == found.digest
    kinds = {"source": pl.String, "target": pl.Int64, "weight": pl.Float64}
    (tmp_path / "bank" / "edges.csv").unlink()
    pl.DataFrame(schema=kinds).write_parquet(tmp_path / "bank" / "edges.parquet")
    assert read_graph(tmp_path / "bank").digest == found.digest
    with pytest.raises(DataError, match="expected a column target"):
        read_graph(write_tables(tmp_path / "other", edges="source,where\n"))
    with pytest.raises(DataError, match="expected data after the header"):
        read_graph(write_tables(tmp_path / "none", nodes="node,label,amount\n"))


def test_semicolons_decimal_commas_gzip_and_other_names(tmp_path: Path) -> None:
    nodes = "konto;gesperrt;umsatz\nÄ1;ja;1,5\nÄ2;nein;2,25\n"
    (tmp_path / "knoten.csv").write_bytes(nodes.encode("utf-8"))
    (tmp_path / "edges.csv").write_text("src;dst;weight\nÄ1;Ä2;0,5\nÄ2;Ä1;0,5\n", encoding="utf-8")
    options = GraphOptions({"node": "konto", "label": "gesperrt"}, values={"label": ("nein", "ja")})
    found = read_graph(tmp_path / "knoten.csv", tmp_path / "edges.csv", options)
    assert found.labels.tolist() == [1, 0]
    assert found.dense_features[:, 0].tolist() == [1.5, 2.25]
    assert found.adjacency.toarray()[0, 1] == 1.0  # both directions' weights add up
    assert read_graph(tmp_path / "knoten.csv", None, options).digest == found.digest  # the edges lie beside it


def test_parquet_with_numbers_as_ids_and_truth_values(tmp_path: Path) -> None:
    pl.DataFrame({"id": [3, 1, 2], "y": [True, False, None], "x": [0.5, None, 2.0]}).write_parquet(
        tmp_path / "nodes.parquet"
    )
    pl.DataFrame({"from": [1, 2], "to": [2, 3], "weight": [1e6, 2.0]}).write_parquet(tmp_path / "edges.parquet")
    found = read_graph(tmp_path)
    assert tuple(found.node_ids) == ("1", "2", "3")
    assert found.labels.tolist() == [0, UNKNOWN, 1]
    assert found.adjacency.max() == 1e6


def test_graphml(tmp_path: Path) -> None:
    text = """<?xml version="1.0"?><graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="d0" for="node" attr.name="label" attr.type="string"/>
<key id="d1" for="node" attr.name="amount" attr.type="double"><default>7</default></key>
<key id="d2" for="edge" attr.name="weight" attr.type="double"/>
<graph edgedefault="directed">
<node id="n1"><data key="d0">ok</data><data key="d1">2</data></node>
<node id="n0"><data key="d0">bad &amp; worse</data></node>
<node id="n2"/>
<edge source="n0" target="n1"><data key="d2">3</data></edge>
<edge source="n1" target="n2"><data key="d2">1</data></edge>
</graph></graphml>"""
    (tmp_path / "ring.graphml").write_text(text, encoding="utf-8")
    found = read_graph(tmp_path / "ring.graphml")
    assert (tuple(found.node_ids), tuple(found.classes)) == (("n0", "n1", "n2"), ("bad & worse", "ok"))
    assert found.dense_features[:, 0].tolist() == [7, 2, 7]
    assert found.adjacency.toarray().tolist() == [[0, 3, 0], [3, 0, 1], [0, 1, 0]]
    (tmp_path / "ring.graphml").write_text(text[:200], encoding="utf-8")
    with pytest.raises(DataError, match="expected GraphML"):
        read_graph(tmp_path / "ring.graphml")


def test_graphml_with_entities_or_without_nodes_is_refused(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE g [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><graphml><node id="&b;"/></graphml>'
    (tmp_path / "bomb.graphml").write_text(bomb, encoding="utf-8")
    with pytest.raises(DataError, match="without a DOCTYPE"):
        read_graph(tmp_path / "bomb.graphml")
    (tmp_path / "none.graphml").write_text("<graphml/>", encoding="utf-8")
    with pytest.raises(DataError, match="with nodes, got none"):
        read_graph(tmp_path / "none.graphml")
    bare = '<graphml><key id="d" for="node" attr.name="label"/><node id="a"><data key="d">x</data></node><node id="b">'
    (tmp_path / "alone.graphml").write_text(f'{bare}<data key="d">y</data></node></graphml>', encoding="utf-8")
    assert read_graph(tmp_path / "alone.graphml").edges == 0


def test_npz_of_both_kinds_and_their_own_splits(tmp_path: Path) -> None:
    found = read_graph(write_npz(tmp_path / "mines.npz"))
    assert (len(found.node_ids), found.edges, tuple(found.classes)) == (4, 3, ("0", "1"))
    assert read_graph(tmp_path / "mines.npz", official=1).splits.tolist() == [VALID, TEST, TRAIN, TRAIN]
    with pytest.raises(SettingsError, match="expected one of 0 to 1"):
        read_graph(tmp_path / "mines.npz", official=2)
    features = found.features
    parts = {"x_data": features.data, "x_indices": features.indices, "x_indptr": features.indptr}
    indices = {"train_idx": np.array([0]), "val_idx": np.array([1]), "test_idx": np.array([2])}
    arrays = {**parts, "x_shape": np.array([4, 2]), "y": np.array([0, 1, -1, 1]), **indices}
    np.savez(tmp_path / "cora.npz", edges=np.array([[0, 1]]), **arrays)
    cited = read_graph(tmp_path / "cora.npz")
    assert cited.labels.tolist() == [0, 1, UNKNOWN, 1]
    assert cited.splits.tolist() == [TRAIN, TRAIN, UNLABELLED, TRAIN]
    assert read_graph(tmp_path / "cora.npz", official=0).splits.tolist() == [TRAIN, VALID, UNLABELLED, UNLABELLED]


@pytest.mark.parametrize(
    "changes",
    [
        {"edges": None},
        {"edges": np.array([[0, 9]])},
        {"edges": np.array([["x", "y"]])},
        {"node_labels": np.array([0, 1])},
        {"node_features": np.full((4, 2), np.nan)},
        {"node_features": np.array([{}, {}], dtype=object)},
        {"node_features": np.array(1.0)},
        {"node_features": np.ones((4, 0))},
        {"node_features": np.ones((4, 2), complex)},
        {"node_features": np.full((4, 2), 3e38)},
        {"node_features": np.ones((0, 2)), "node_labels": np.zeros(0), "edges": np.zeros((0, 2))},
        {"node_labels": np.array([0, 1, 0, 10**9])},
        {"edges": np.array([[0, -1]])},
    ],
)
def test_npz_that_is_no_graph(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="expected"):
        read_graph(write_npz(tmp_path / "mines.npz", **changes))


@pytest.mark.parametrize(
    "damage", [lambda b: b[:300], lambda b: b"PK\x03\x04" + b[4:99], lambda b: b.replace(b"\0", b"\1")]
)
def test_damaged_npz_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = write_npz(tmp_path / "mines.npz")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match="got something else"):
        read_graph(path)


def test_npz_that_says_it_is_larger_than_memory_is_refused(tmp_path: Path) -> None:
    rows, shape = np.array([0, 1]), np.array([2, 10**12])
    parts = {"x_data": np.ones(2), "x_indices": rows, "x_indptr": np.array([0, 1, 2]), "x_shape": shape}
    write_npz(tmp_path / "wide.npz", **parts, y=rows, edges=np.array([[0, 1]]))
    with pytest.raises(DataError, match=r"expected 1 to 1,048,576 features"):
        read_graph(tmp_path / "wide.npz")


@pytest.mark.parametrize(
    "changes",
    [
        {"train_masks": None},
        {"val_masks": None},
        {"train_masks": np.ones((2, 9), bool)},
        {"train_masks": np.array(1)},
        {"train_masks": None, "train_idx": [99], "val_idx": [1], "test_idx": [2]},
        {"train_masks": None, "train_idx": [-1], "val_idx": [1], "test_idx": [2]},
        {"train_masks": None, "train_idx": [0.5], "val_idx": [1], "test_idx": [2]},
    ],
)
def test_official_splits_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="expected"):
        read_graph(write_npz(tmp_path / "mines.npz", **changes), official=0)


@pytest.mark.parametrize("encoding", ["shift_jis", "utf-7", "no-such", "idna", "rot13"])
def test_graphml_that_names_another_encoding_is_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "one.graphml").write_text(f'<?xml version="1.0" encoding="{encoding}"?><graphml/>', encoding="utf-8")
    with pytest.raises(DataError, match="save it as UTF-8"):
        read_graph(tmp_path / "one.graphml")


def test_labels_that_look_like_numbers_and_are_none_are_words(tmp_path: Path) -> None:
    found = read_graph(write_tables(tmp_path, "node,label\na,--5\nb,1\nc," + "9" * 5000 + "\n", EDGES))
    assert found.classes == ("--5", "1", "9" * 5000)


REFUSED = [
    ("node,label\nsecret-1,a\nsecret-1,b\n", EDGES, "one row for each node"),
    ("node,label\nsecret-1,a\n,b\n", EDGES, "line 3: expected"),
    ("node,amount\nsecret-1,1\n", EDGES, "expected a column label"),
    ("node,label\nsecret-1,a\nb,a\n", EDGES, "two classes or more"),
    (NODES, "source,other\na,secret-1\n", "expected a column target"),
    (NODES, "source,target,weight\na,b,1\na,c,secret-1\n", "line 3: expected a number above 0"),
    (NODES, "source,target,weight\na,b,-1\n", "line 2: expected a number above 0"),
    (NODES, "source,target,weight\na,b,\n", "line 2: expected a number above 0"),
    (NODES, "source,target,weight\na,b,inf\n", "line 2: expected a number above 0"),
    (NODES, "source,target\na,\n", "expected"),
    (NODES, "source,target,weight\na,b,1e-50\n", "expected weights of edges from 1e-30"),
    (NODES, "source,target,weight\na,b,3e38\n", "expected weights of edges from 1e-30"),
    ("node,label,x\na,1,1e39\nb,0,1\n", EDGES, "line 2: expected a finite number up to"),
    ("node,label,x\na,1,inf\nb,0,1\n", EDGES, "line 2: expected a finite number up to 1e\\+30 in column 'x'"),
    ("node,label,split\na,1,secret-1\nb,0,train\n", EDGES, "line 2: expected train, valid, test"),
    ("node,label,split\na,1,\nb,0,train\n", EDGES, "line 2: expected train, valid or test"),
    ("node,label\n" + "".join(f"n{one},secret-{one}\n" for one in range(101)), EDGES, "up to 100 classes"),
    ("node,label,word\n" + "".join(f"n{one},{one % 2},secret-{one}\n" for one in range(51)), EDGES, "expected numbers"),
]


@pytest.mark.parametrize(("nodes", "edges", "said"), REFUSED)
def test_odd_tables_are_refused_without_an_id(tmp_path: Path, nodes: str, edges: str, said: str) -> None:
    with pytest.raises(DataError, match=said) as refused:
        read_graph(write_tables(tmp_path / "bank", nodes, edges))
    assert "secret" not in str(refused.value)


def test_a_silo_says_the_words_that_all_silos_share(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "bank")
    alone = GraphOptions(shared_values=False)
    with pytest.raises(DataError, match="--values country=A,B"):
        read_graph(folder, options=alone)
    said = GraphOptions(values={"country": ("FR", "DE", "IT"), "label": ("ok", "fraud", "mule")}, shared_values=False)
    found = read_graph(folder, options=said)
    assert found.feature_names == ("amount", "country=FR", "country=DE", "country=IT")
    assert (found.classes, found.labels.tolist()) == (("ok", "fraud", "mule"), [0, 1, UNKNOWN, 0])
    with pytest.raises(DataError, match="one of the 2 classes that --values names"):
        read_graph(folder, options=GraphOptions(values={"label": ("ok", "mule")}))


def test_a_graph_without_edges_or_features(tmp_path: Path) -> None:
    found = read_graph(write_tables(tmp_path / "bank", "node,label\na,1\nb,0\n", "source,target\nx,y\n"))
    assert (found.edges, found.feature_names) == (0, ("constant",))
    assert "no column of features" in "\n".join(found.notes)


def test_what_is_known_as_a_graph_by_its_name(tmp_path: Path) -> None:
    assert is_graph(write_tables(tmp_path / "bank"))
    assert is_graph(write_npz(tmp_path / "mines.npz"))
    (tmp_path / "bank" / "edges.csv").unlink()
    assert not is_graph(tmp_path / "bank")
    with pytest.raises(DataError, match="expected a file edges"):
        read_graph(tmp_path / "bank")
    with pytest.raises(DataError, match="with a file edges beside it"):
        read_graph(tmp_path / "bank" / "nodes.csv")
    with pytest.raises(DataError, match="got nothing there"):
        read_graph(tmp_path / "nowhere")
