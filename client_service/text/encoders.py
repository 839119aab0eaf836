"""The encoders of items by name: a file each, and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from client_service.text.feature_file import FeatureFile
from client_service.text.projection import ProjectionEncoder, TextTable, Values, make_text_table
from client_service.text.sentence_transformer import encode_by_sentences
from client_service.text.vocabulary import SvdEncoder
from client_service.text.word_vectors import encode_by_word_vectors
from shared.errors import DataError, SettingsError

SMALLEST_WIDTH, LARGEST_WIDTH = 2, 4096


@dataclass(frozen=True)
class CatalogueTexts:
    """Ids, titles and attributes of N items, as they are encoded."""

    item_ids: Sequence[str]
    titles: Sequence[str | None]
    columns: Mapping[str, Values]

    @property
    def table(self) -> TextTable:
        """Sorts the columns into blocks."""
        return make_text_table(self.titles, self.columns)


def _project(texts: CatalogueTexts, width: int) -> FeatureFile:
    encoder = ProjectionEncoder(width)
    return FeatureFile(tuple(texts.item_ids), encoder.encode_table(texts.table), encoder.name)


def _fit_vocabulary(texts: CatalogueTexts, width: int) -> FeatureFile:
    table = texts.table
    try:
        encoder = SvdEncoder.fit(table, width)
    except ValueError as error:
        raise DataError(f"--encoder svd: expected {error}: a smaller --width, or --encoder projection") from None
    return FeatureFile(tuple(texts.item_ids), encoder.encode_table(table), encoder.name, encoder.state)


def _look_up_words(texts: CatalogueTexts, width: int) -> FeatureFile:  # noqa: ARG001 - the vectors have their own
    return FeatureFile(tuple(texts.item_ids), *encode_by_word_vectors(texts.table))


ENCODERS: Final[Mapping[str, Callable[[CatalogueTexts, int], FeatureFile]]] = {
    "projection": _project,
    "svd": _fit_vocabulary,
    "glove": _look_up_words,
}


def encode_items(texts: CatalogueTexts, encoder: str, width: int) -> FeatureFile:
    """Computes the features of items by a registered encoder, or by a folder's model.

    SettingsError for an unknown encoder, a missing package or a width outside the bounds. DataError if no item has
    a text or an attribute.
    """
    if not SMALLEST_WIDTH <= width <= LARGEST_WIDTH:
        raise SettingsError(f"--width: expected {SMALLEST_WIDTH} to {LARGEST_WIDTH:,}, got {width:,}")
    encode = ENCODERS.get(encoder)
    if encode is None and Path(encoder).is_dir():
        encode = partial(_encode_by_folder, Path(encoder))
    if encode is None:
        expected = f"{', '.join(ENCODERS)} or the folder of a sentence-transformers model"
        raise SettingsError(f"--encoder: expected {expected}, got {encoder!r}")
    found = encode(texts, width)
    if not found.values.any():
        raise DataError("items: expected a title or an attribute of some item, got none")
    return found


def encode_by_file(texts: CatalogueTexts, like: FeatureFile, path: Path) -> FeatureFile:
    """Computes the features of items by the encoder of a file.

    DataError for an encoder that the file does not hold.
    """
    encoder = like.text_encoder
    if encoder is None:
        expected = "expected features of the encoder projection or svd, whose function the file holds"
        raise DataError(f"{path}: {expected}, got {like.encoder}: use --encoder")
    return FeatureFile(tuple(texts.item_ids), encoder.encode_table(texts.table), like.encoder, like.state)


def _encode_by_folder(folder: Path, texts: CatalogueTexts, width: int) -> FeatureFile:  # noqa: ARG001
    return FeatureFile(tuple(texts.item_ids), *encode_by_sentences(texts.table, folder))
