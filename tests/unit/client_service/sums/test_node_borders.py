"""Border sums: whole neighbourhoods for nodes with enough foreign neighbours, and nothing for anybody else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from client_service.data.node_graphs import NodeShard
from client_service.models.nodes.closed_form import DesignSpec, make_design
from client_service.sums.node_borders import NODE_BORDERS_SUM, draw_padding, place_own, read_borders
from shared.errors import ProtocolError, SettingsError
from shared.sums.node_borders import CLAIM, TABLE, border_tensors, count_rows, list_rows, place_nodes
from shared.sums.sum import decode_fixed
from tests.support.node_silos import BorderRun, border_settings, cut_graph, draw_graph

SPEC = DesignSpec(features=3, powers=(0, 1, 2))


def dense_silos() -> tuple[NodeShard, list[NodeShard]]:
    graph = draw_graph(36, 0.9)
    return graph, cut_graph(graph, [place % 3 for place in range(36)])


def star(own: int, others: int) -> list[NodeShard]:
    """Node 0 of silo 0 beside so many neighbours in silo 1 and so many in silo 2; silo 0 has some more nodes."""
    graph = draw_graph(3 + own + others, 0.0)
    edges = graph.adjacency.tolil()
    for place in range(3, 3 + own + others):
        edges[0, place] = edges[place, 0] = 1.0
    return cut_graph(replace(graph, adjacency=edges.tocsr()), [0] * 3 + [1] * own + [2] * others)


def test_with_all_neighbours_in_them_the_design_is_that_of_the_whole_graph() -> None:
    graph, shards = dense_silos()
    whole = make_design(graph, SPEC)
    for shard in BorderRun(shards, border_settings()).completed():
        assert shard.borders is not None and (shard.borders.counts == shard.foreign.counts).all()
        rows = [graph.rows[one] for one in shard.node_ids]
        np.testing.assert_allclose(make_design(shard, SPEC), whole[rows], atol=2e-4)
        assert shard.digest == replace(shard, borders=None).digest


def test_without_border_sums_the_design_is_that_of_the_own_graph() -> None:
    _, (shard, *_) = dense_silos()
    np.testing.assert_array_equal(make_design(shard, SPEC), make_design(replace(shard, foreign=None), SPEC))


def test_only_the_node_s_silo_reads_a_row() -> None:
    """To anybody else rows are noise: to the aggregator, which has the table, and to silos with other secrets."""
    _, shards = dense_silos()
    run = BorderRun(shards, border_settings())
    known = run.finish()
    other = read_borders(shards[0], known, run.secret(1))
    assert other is not None and not other.counts.any() and not other.sums.any()
    rows = known.tables[0][: 72 * known.width].reshape(72, known.width)
    rows = rows[rows.any(1)]
    assert len(rows) == 36
    assert (list_rows(known.claims, known.rows) >= 0).sum() == 2 * 36
    small = np.abs(rows.view(np.int32)) < 1 << 20
    assert small.mean() < 0.02, "not one row lies open"
    assert (draw_padding(b"s" * 32, known.claims, 2) != draw_padding(b"s" * 32, known.claims, 3)).mean() > 0.99


def test_below_k_nothing_opens() -> None:
    """A node with k - 1 foreign neighbours is not claimed, and no silo adds anything for it."""
    for own, others, opened in ((4, 0, 0), (5, 0, 5), (3, 3, 6), (2, 4, 0), (2, 6, 6)):
        shards = star(own, others)
        run = BorderRun(shards, border_settings(least=5, own=3))
        run.sum_round(1)
        claimed = own + others >= 5
        assert np.count_nonzero(run.sums[1][TABLE]) == 2 * int(claimed)
        known = run.finish()
        borders = known.complete(shards[0], run.secret(0)).borders
        assert borders is not None and borders.counts.tolist() == [opened, 0, 0], (own, others)
        if not claimed:
            assert not known.tables.any()


def test_no_lie_of_a_silo_makes_another_add_fewer_than_its_own_rule_allows() -> None:
    """The silo of node 0 claims it although it has too few neighbours, and says that it has a thousand of them."""
    shards = star(2, 2)
    run = BorderRun(shards, border_settings(least=5, own=3))
    node = place_own(shards[0], "f", 1 << 14)
    lie = np.zeros(1 << 14, np.uint32)
    lie[node.cells[:, 0]] = node.claims[0]
    run.sum_round(1, {TABLE: lie})
    assert (list_rows(run.sums[1][TABLE], 100) >= 0).sum() == 2, "the claim stands"
    for number in (2, 3):
        run.sum_round(number)
        for place in (1, 2):
            assert not run.part(place, number)[TABLE].any(), "two nodes are fewer than three"


def test_a_silo_that_lies_reads_no_less_than_the_others_own_rule() -> None:
    """A node with three neighbours in one silo: k is five, and its own silo lies. It reads the sum of three."""
    shards = star(3, 0)
    run = BorderRun(shards, border_settings(least=5, own=3))
    node = place_own(shards[0], "f", 1 << 14)
    lie = np.zeros(1 << 14, np.uint32)
    lie[node.cells[:, 0]] = node.claims[0]
    run.sum_round(1, {TABLE: lie})
    known = run.finish()
    assert read_borders(shards[0], known, run.secret(0)).counts.sum() == 0  # type: ignore[union-attr]
    told = read_borders(shards[0], replace(known, least=1), run.secret(0))
    assert told is not None and told.counts.tolist() == [3, 0, 0], "named in docs/privacy.md"


def test_a_node_that_two_silos_claim_opens_nowhere() -> None:
    shards = star(5, 5)
    twice = replace(shards[0], name="twice")
    run = BorderRun([*shards, twice], border_settings())
    known = run.finish()
    assert known.claims.max() >= 2 * CLAIM and not known.tables.any()
    assert all(not shard.borders.counts.any() for shard in run.completed() if shard.borders)


def test_an_id_that_nobody_owns_opens_nowhere() -> None:
    """Edges to somebody outside the federation: all silos know the id, and none claims it."""
    graph = draw_graph(30, 0.9)
    shards = cut_graph(graph, [-1, *(place % 3 for place in range(29))])
    run = BorderRun(shards, border_settings())
    known = run.finish()
    cells = place_nodes([graph.node_ids[0]], "f", 1 << 14)
    assert not (known.claims[cells.cells[:, 0]] == cells.claims[0]).any()
    used = known.tables.reshape(2, -1, 4)[:, :29] if known.tables.shape[1] % 4 == 0 else known.tables
    assert used.any() and all(shard.borders.counts.all() for shard in run.completed() if shard.borders)
    for shard in run.completed():
        assert (shard.borders.counts <= shard.foreign.counts - 0).all()  # type: ignore[union-attr]


def test_an_aggregator_that_lies_reads_sums_for_ids_that_nobody_owns_and_for_nothing_else() -> None:
    """It says that a node of no silo is claimed: sums of three or more nodes of a silo lie open, as docs/privacy.md
    says. It says the same of a node of a silo: that silo's padding hides the row."""
    graph = draw_graph(30, 0.9)
    shards = cut_graph(graph, [-1, *(place % 3 for place in range(29))])
    run = BorderRun(shards, border_settings(least=29, own=3))  # nobody claims anything
    run.sum_round(1)
    assert not run.sums[1][TABLE].any()
    stranger, own = (place_nodes([graph.node_ids[one]], "f", 1 << 14) for one in (0, 1))
    for told in (stranger, own):
        run.sums = {1: {TABLE: np.zeros(1 << 14, np.uint32)}}
        run.sums[1][TABLE][told.cells[:, 0].max()] = told.claims[0]
        run.sum_round(2)
        row = run.sums[2][TABLE][:4]
        if told is own:
            assert row[-1] > 100, "noise"
            continue
        neighbours = graph.adjacency[[0]].indices
        by_silo = np.bincount((neighbours - 1) % 3, minlength=3)
        assert row[-1] == by_silo.sum() >= 9, "a sum of all that each silo has, three or more"


def test_nodes_in_one_cell_open_nowhere_and_their_silos_read_nothing_false() -> None:
    graph, shards = dense_silos()
    run = BorderRun(shards, border_settings(numbers=288), federation="another")
    completed = run.completed()
    read = np.concatenate([one.borders.counts > 0 for one in completed if one.borders])
    cells = place_nodes(graph.node_ids, "another", 288).cells
    alone = (np.bincount(cells.ravel(), minlength=288)[cells] == 1).any(0)
    assert 0 < read.sum() <= alone.sum() < 36
    whole = make_design(graph, DesignSpec(3, (0, 1)))
    for shard in completed:
        rows = np.array([graph.rows[one] for one in shard.node_ids])[shard.borders.counts > 0]  # type: ignore[union-attr]
        own = make_design(shard, DesignSpec(3, (0, 1)))[shard.borders.counts > 0]  # type: ignore[union-attr]
        np.testing.assert_allclose(own, whole[rows], atol=2e-4)


def test_more_claims_than_rows_leave_the_last_without() -> None:
    _, shards = dense_silos()
    run = BorderRun(shards, border_settings(numbers=256))
    rows = list_rows(run.finish().claims, 5)
    assert rows.max() == 4 and (rows >= 0).sum() == 5


def test_rows_that_do_not_fit_the_fixed_point_are_left_out_and_others_stay() -> None:
    _, shards = dense_silos()
    wild = shards[1]
    features = wild.features.copy()
    features.data[:3] = 1e9  # of its first node
    completed = BorderRun([shards[0], replace(wild, features=features), shards[2]], border_settings()).completed()
    borders = completed[0].borders
    assert borders is not None and np.isfinite(borders.sums).all() and np.abs(borders.sums).max() < 100
    assert (borders.counts[borders.counts > 0] >= 5).all()


def test_numbers_in_rows_that_nobody_claims_are_refused() -> None:
    shards = star(3, 3)
    run = BorderRun(shards, border_settings())
    run.finish()
    run.sums[3][TABLE][-1] = 7
    with pytest.raises(ProtocolError, match=r"^expected zeros in unclaimed rows of border sums"):
        NODE_BORDERS_SUM.finish(run.at(0, 3, run.sums))


def test_silos_without_foreign_edges_add_zeros_and_read_nothing() -> None:
    _, shards = dense_silos()
    alone = replace(shards[0], foreign=None)
    run = BorderRun([alone, *shards[1:]], border_settings())
    known = run.finish()
    assert known.complete(alone, run.secret(0)) is alone
    assert (
        NODE_BORDERS_SUM.digests(alone, run.method).catalogue
        != NODE_BORDERS_SUM.digests(shards[1], run.method).catalogue
    )


def test_counts_beyond_what_a_node_has_are_not_believed() -> None:
    """A silo that adds to any row spoils it, and is noticed where the number of neighbours is spoilt with it."""
    shards = star(3, 3)
    run = BorderRun(shards, border_settings())
    run.sum_round(1)
    more = np.zeros(1 << 14, np.uint32)
    more[3] = 1  # the row's number of neighbours
    run.sum_round(2, {TABLE: more})
    assert not run.completed()[0].borders.counts.any()  # type: ignore[union-attr]


def test_the_neighbours_of_two_nodes_that_differ_by_one_tell_that_one() -> None:
    """The caveat that policy and docs name."""
    graph = draw_graph(9, 0.0)
    edges = graph.adjacency.tolil()
    for node, last in ((0, 8), (1, 7)):
        for place in range(2, last + 1):
            edges[node, place] = edges[place, node] = 1.0
    shards = cut_graph(replace(graph, adjacency=edges.tocsr()), [0, 0, 1, 1, 1, 1, 1, 1, 1])
    borders = BorderRun(shards, border_settings()).completed()[0].borders
    assert borders is not None and borders.counts.tolist() == [7, 6]
    told = (borders.sums[0, 0] - borders.sums[0, 1]) * 1.0  # its degree is 1
    np.testing.assert_allclose(told, graph.features[[8]].toarray()[0], atol=1e-4)


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"^nodes.features: expected the columns"):
        border_tensors(border_settings(0))
    with pytest.raises(SettingsError, match=r"^nodes.border_numbers: expected 1,001 or more, as a row has, got 256"):
        border_tensors(border_settings(1000, numbers=256))
    with pytest.raises(SettingsError, match="border_own of at most border_least = 5, got 6"):
        border_settings(own=6)
    assert count_rows(border_settings(9, numbers=256)) == 25
    assert decode_fixed(np.zeros(1, np.uint32)) == 0
