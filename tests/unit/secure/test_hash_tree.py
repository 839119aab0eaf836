"""One signature under a root stands for each leaf, and for nothing else."""

from __future__ import annotations

import hashlib

import pytest

from shared.protocol.secure.hash_tree import HASH_BYTES, INNER, HashTree, climb_path
from shared.protocol.secure.messages import HIGHEST_TREE


def leaves(count: int) -> list[bytes]:
    return [hashlib.sha256(bytes([0]) + place.to_bytes(4)).digest() for place in range(count)]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 25, 54, 1023])
def test_each_path_leads_from_its_leaf_to_the_root_and_from_no_other(count: int) -> None:
    given = leaves(count)
    tree = HashTree(given)
    for place, leaf in enumerate(given):
        path = tree.find_path(place)
        assert climb_path(leaf, path) == tree.root and len(path) <= HIGHEST_TREE * HASH_BYTES
        assert climb_path(hashlib.sha256(leaf).digest(), path) != tree.root
        if count > 2:
            assert climb_path(given[(place + 2) % count], path) != tree.root


def test_a_small_tree_is_as_written_by_hand() -> None:
    one, two, three = leaves(3)
    pair = hashlib.sha256(INNER + min(one, two) + max(one, two)).digest()
    root = hashlib.sha256(INNER + min(pair, three) + max(pair, three)).digest()
    tree = HashTree([one, two, three])
    assert tree.root == root and tree.find_path(2) == pair and tree.find_path(0) == two + three


@pytest.mark.parametrize("count", [2, 3, 6])
def test_every_leaf_is_in_the_root(count: int) -> None:
    given = leaves(count)
    roots = {HashTree(given).root}
    for place in range(count):
        roots.add(HashTree([*given[:place], hashlib.sha256(given[place]).digest(), *given[place + 1 :]]).root)
    assert len(roots) == count + 1


def test_an_inner_hash_is_no_leaf() -> None:
    """What a share's hash is of begins with the length of a label in two bytes, and so with a zero."""
    assert INNER != b"\0" and len(INNER) == 1
