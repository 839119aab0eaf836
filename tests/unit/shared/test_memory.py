"""A start imports without garbage collections, and its modules are not looked through later."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from shared.memory import pause_collections


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_nothing_is_collected_while_modules_are_imported_and_all_of_it_is_left_alone_later() -> None:
    with pause_collections():
        assert not gc.isenabled()
        imported = [{} for _ in range(2000)]  # type: list[dict[str, int]]
    assert gc.isenabled() and gc.get_freeze_count() > 2000
    assert not any(one is imported[0] for generation in range(3) for one in gc.get_objects(generation))


def test_an_import_that_fails_leaves_collections_on() -> None:
    with pytest.raises(ImportError), pause_collections():
        raise ImportError
    assert gc.isenabled()
