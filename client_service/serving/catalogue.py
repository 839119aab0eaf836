"""Words -> the items of the catalogue whose titles hold them, and what is known of an item."""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import normalize

import numpy as np
import polars as pl

from client_service.data import Shard
from client_service.event_log.messages import ItemIn
from client_service.event_log.overlay import Overlay
from client_service.models.ranker import Rows
from client_service.serving.messages import CatalogueItemOut, ItemsOut
from shared.errors import NotFoundError

Titles = Sequence[str | None] | None


class Catalogue:
    """The items of one shard, with what has been said of them since."""

    def __init__(self, shard: Shard, overlay: Overlay) -> None:
        self._shard, self._overlay = shard, overlay
        self._folded: tuple[Titles, pl.Series] = (None, _fold_titles(None, len(shard.item_ids)))

    def search(self, words: str, offset: int, k: int) -> ItemsOut:
        """Items whose titles hold all of the words, as `fold` compares text; without words all items."""
        rows = self._find_rows(fold(words).split())
        ids = self._shard.item_ids
        return ItemsOut(total=len(rows), items=tuple(self.read(ids[row]) for row in rows[offset : offset + k].tolist()))

    def read(self, item: str) -> CatalogueItemOut:
        """NotFoundError for an item of which neither the shard nor an application knows."""
        facts = self._overlay.facts.of(item)
        if facts is None:
            raise NotFoundError("expected an item of this silo's catalogue, got an unknown one")
        return _describe(item, facts, in_catalogue=self._shard.item_row(item) is not None)

    def count_shown(self) -> int:
        """How many items can be recommended."""
        hidden = self._overlay.hidden
        return len(self._shard.item_ids) - (0 if hidden is None else int(hidden.sum()))

    def _find_rows(self, words: Sequence[str]) -> Rows:
        hidden, found = self._overlay.hidden, np.ones(len(self._shard.item_ids), dtype=bool)
        if hidden is not None:
            found &= ~hidden
        for word in words:
            found &= self._titles().str.contains(word, literal=True).fill_null(False).to_numpy()
        return np.flatnonzero(found)

    def _titles(self) -> pl.Series:
        """Folded; made anew where titles have changed."""
        titles = self._overlay.titles
        if self._folded[0] is not titles:
            self._folded = (titles, _fold_titles(titles, len(self._shard.item_ids)))
        return self._folded[1]


def fold(text: str) -> str:
    """What two texts are compared by: NFKC and full case folding of Unicode.

    `STRASSE` is `Straße`, a sigma at the end of a word is a sigma, composed and decomposed accents are the same, and so
    are letters of full width. An accent that is not there makes another letter: `cafe` is not `café`.
    """
    if text.isascii():
        return text.lower()
    # Twice: folding can take apart what was composed, and composing can give a letter that folds.
    return normalize("NFKC", normalize("NFKC", normalize("NFD", text).casefold()).casefold())


def _fold_titles(titles: Titles, count: int) -> pl.Series:
    given = pl.Series([None] * count if titles is None else titles, dtype=pl.String)
    others = given.str.contains(r"[^\x00-\x7F]").fill_null(False)
    folded = given.filter(others).map_elements(fold, return_dtype=pl.String)  # polars has no case folding
    return given.str.to_lowercase().scatter(others.arg_true(), folded)


def _describe(item: str, facts: ItemIn, *, in_catalogue: bool) -> CatalogueItemOut:
    return CatalogueItemOut(
        item=item,
        title=facts.title,
        categories=facts.categories,
        attributes=facts.attributes,
        hidden=facts.hidden,
        in_catalogue=in_catalogue,
    )
