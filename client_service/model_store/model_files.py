"""Saves and loads trained models, and freezes copies for answers."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from pydantic import Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from client_service.compiled.model import Relevance
from client_service.compiled.publication import REFRESH
from client_service.evaluation.metrics import MeasureValues
from client_service.model_store.model_server import FrozenModel
from client_service.models.closed_form.content import ColdItemScorer
from client_service.models.initial_filter import Filter
from client_service.models.model import Model
from client_service.models.parameter_transfer import ShardRows
from client_service.models.ranker import Ranker
from client_service.models.score_fusion import Recipe
from client_service.training.item_trainer import ItemTrainer
from shared.errors import DataError
from shared.files import replace_file, save_arrays
from shared.message import Message
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings

SHORT = 16  # characters of the shard's digest in a file's name
PATTERN = "rows-*.parquet"
USER, ITEM, CATALOGUE = "user", "item", "catalogue"


def rows_path(folder: Path, shard: str) -> Path:
    """Returns the path of the file with a shard's rows, by the shard's digest."""
    return folder / PATTERN.replace("*", shard[:SHORT])


def save_rows(folder: Path, shard: str, rows: ShardRows) -> None:
    """Saves the rows of a shard, unless their file exists.

    The file is durable when this returns.
    """
    path = rows_path(folder, shard)
    if path.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    sides = ((USER, rows.users, rows.prints), (ITEM, rows.items, None), (CATALOGUE, (rows.catalogue,), None))
    schema = {"side": pl.String, "id": pl.String, "print": pl.Int64}
    columns = ({"side": side, "id": ids, "print": prints} for side, ids, prints in sides if len(ids))
    tables = [pl.DataFrame(one, schema) for one in columns]
    buffer = io.BytesIO()
    pl.concat(tables).write_parquet(buffer)
    replace_file(path, buffer.getvalue())


def load_rows(folder: Path, shard: str) -> ShardRows | None:
    """Loads the rows of a shard; None for a missing file.

    DataError for a file that cannot be read.
    """
    path = rows_path(folder, shard)
    if not path.exists():
        return None
    try:
        table = pl.read_parquet(path)
        users, items, lists = (table.filter(pl.col("side") == side) for side in (USER, ITEM, CATALOGUE))
        prints = users["print"].fill_null(0).to_numpy().astype(np.int64)
        return ShardRows(users["id"].to_list(), items["id"].to_list(), lists["id"].item(), prints)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError):
        raise DataError(f"{path}: expected the rows of a kept model's shard, got something else") from None


FORMAT = "lpsfed-model/1"
CURRENT = "model.json"  # the head of the model that is served


class ModelHead(MeasureValues, Message):
    """Description of a stored model, and of what it was trained with.

    A model fits only the shard, the start, the settings and the common basis that it was trained with. basis: digest of
    the common basis, content: of the content sums, "" without them. chosen_for: number of training pairs of the shard
    when start and recipe were chosen. number: tells its version from another of the same run and round, see
    `VersionNumbers`; 0: none. text: `text_digest` of the shard; None in files of earlier versions. carried: were
    parameters that a run had trained taken over from another shard? kept_at: UTC, ISO 8601; "" in files of earlier
    versions, which have no `relevance`.
    """

    format: str = FORMAT
    shard: str
    run: str
    round: int
    method: MethodSettings
    kind: str = ""
    start: Filter | None
    recipe: Recipe | None = None
    basis: str = ""
    content: str = ""
    chosen_for: int = 0
    number: int = 0
    carried: bool = False
    relevance: Relevance | None = None
    parameters: str = ""
    kept_at: str = ""
    text: str | None = Field(None, exclude_if=lambda text: text is None)

    def fits_text(self, text: str) -> bool:
        """Tells whether the model was made with texts of this digest.

        True in files of earlier versions, which do not say it.
        """
        return self.text in (None, text)

    @property
    def version(self) -> str:
        """Names the model shortly, as each recommendation shows it."""
        return name_version(self.run, self.round, self.number)

    @property
    def is_trained(self) -> bool:
        """Checks if training has changed the model that follows from its shard alone."""
        return self.carried or (self.run != REFRESH and self.round > 0)


def name_version(run: str, number: int, apart: int = 0) -> str:
    """Returns the version name of the model of a run's round.

    number: the round. apart: see `ModelHead.number`.
    """
    return f"{run}.{number}~{apart}" if apart else f"{run}.{number}"


def save_model(folder: Path, model: nn.Module, head: ModelHead) -> ModelHead:
    """Saves a model's parameters, then the head that names their file.

    In this order, readers see either the old pair or the new one. Returns the head as written, with the file's name
    and the time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"model-{head.version}.safetensors"
    arrays = {key: value.detach().cpu().contiguous().numpy() for key, value in model.named_parameters()}
    save_arrays(folder / name, arrays)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    written = head.model_copy(update={"parameters": name, "kept_at": now})
    replace_file(folder / CURRENT, written.model_dump_json(indent=1).encode())
    return written


def load_head(folder: Path) -> ModelHead | None:
    """Loads the head of the served model; None for a missing or unreadable file."""
    try:
        return ModelHead.model_validate_json((folder / CURRENT).read_bytes())
    except (OSError, ValidationError):
        return None


def load_tensors(folder: Path, head: ModelHead) -> dict[str, Tensor] | None:
    """Loads all parameters of a kept model of any shard.

    None for a missing or damaged file.
    """
    try:
        return load_file(folder / head.parameters)
    except (OSError, SafetensorError):
        return None


def load_parameters(folder: Path, head: ModelHead, model: nn.Module) -> bool:
    """Loads a kept model's parameters into a model.

    False, with nothing changed, if the file is missing, damaged, or has parameters of another shape.
    """
    tensors = load_tensors(folder, head)
    return tensors is not None and copy_parameters(tensors, model)


def copy_parameters(tensors: Mapping[str, Tensor], model: nn.Module) -> bool:
    """Copies parameters into a model; False, with nothing changed, for other names or shapes."""
    own = dict(model.named_parameters())
    if {k: v.shape for k, v in tensors.items()} != {k: v.shape for k, v in own.items()}:
        return False
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)
    return True


@dataclass(frozen=True)
class ServedItems(FrozenModel):
    """Frozen model of users and items.

    ranker: ranks the items of lists. cold: scores items that nobody has; None if nothing is known of the items.
    """

    model: Model
    ranker: Ranker = field(kw_only=True)
    cold: ColdItemScorer | None = field(default=None, kw_only=True)

    @cached_property
    def directions(self) -> Float32:
        """Scales item embeddings to length one, (N, q), to find similar items."""
        rows = self.ranker.items.embedding
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows / np.where(length > 0, length, 1.0)).astype(np.float32)


def freeze(version: str, training: ItemTrainer) -> ServedItems:
    """Copies a model's parameters into a frozen model.

    The constant buffers and the fusion, which are large, are shared with the original.
    """
    model = training.model
    constant = {id(buffer): buffer for buffer in model.buffers()}
    frozen = copy.deepcopy(model, memo=constant).requires_grad_(False)
    frozen.encoder.prepare_inference()
    ranker = frozen.freeze().with_fusion(training.fusion, training.codes)
    return ServedItems(version, frozen, ranker=ranker, cold=training.cold)
