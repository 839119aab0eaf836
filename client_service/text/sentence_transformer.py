"""Encodes items by a sentence-transformers model in a local folder. Nothing is downloaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np

from client_service.text.projection import Float32, TextTable, join_attributes, unit_rows
from shared.errors import DataError, SettingsError

PACKAGE: Final = "sentence_transformers"
MODULES: Final = "modules.json"  # a file that every folder of such a model has
TEXT_WEIGHT: Final = 0.6
BATCH: Final = 64  # items


def encode_by_sentences(table: TextTable, folder: Path) -> tuple[Float32, str]:
    """Computes the features of items by a sentence model, and the encoder's name.

    Vectors of titles and categories, then the attributes.
    """
    if not (folder / MODULES).is_file():
        raise DataError(f"{folder}: expected a folder of a sentence-transformers model with {MODULES}, got none")
    if find_spec(PACKAGE) is None:
        extra = "pip install 'lpsfed[sentences]'"
        raise SettingsError(f"--encoder {folder}: expected the package sentence-transformers, got none: {extra}")
    from sentence_transformers import SentenceTransformer

    try:
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise DataError(f"{folder}: expected a sentence-transformers model, got {type(error).__name__}") from error
    texts = describe_items(table.titles, table.categories)
    vectors = model.encode(texts, batch_size=BATCH, convert_to_numpy=True, show_progress_bar=False)
    found = np.asarray(vectors, dtype=np.float32)
    found[[not text for text in texts]] = 0.0
    if found.ndim != 2 or not np.isfinite(found).all():
        raise DataError(f"{folder}: expected a finite vector of each text, got other values or shapes")
    return join_attributes(unit_rows(found), table, TEXT_WEIGHT), f"sentences/{found.shape[1]}/{_digest(folder)}"


def describe_items(titles: Sequence[str], categories: Mapping[str, Sequence[str | None]]) -> list[str]:
    """Writes each item as one text: its title, then its categories."""
    columns = [titles, *([(value or "").replace("|", ", ") for value in values] for values in categories.values())]
    return [". ".join(part.strip() for part in parts if part.strip()) for parts in zip(*columns, strict=True)]


def _digest(folder: Path) -> str:
    """Computes the first digits of sha256 over the model's files: another model is another function."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".json", ".txt", ".safetensors", ".bin", ".model"):
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
            digest.update(str(path.relative_to(folder)).encode() + content)
    return digest.hexdigest()[:16]
