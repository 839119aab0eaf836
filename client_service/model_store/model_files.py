"""A trained model on the disk, and its frozen copy from which answers come."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np
import polars as pl
import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from client_service.compiled.model import Relevance
from client_service.compiled.publication import REFRESH
from client_service.evaluation.metrics import MeasureValues
from client_service.model_store.model_server import FrozenModel
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

SHORT = 16  # characters of the shard's digest
PATTERN = "rows-*.parquet"
USER, ITEM, CATALOGUE = "user", "item", "catalogue"


def rows_path(folder: Path, shard: str) -> Path:
    """Of the shard of this digest."""
    return folder / PATTERN.replace("*", shard[:SHORT])


def save_rows(folder: Path, shard: str, rows: ShardRows) -> None:
    """Durable when this returns; nothing is written where they are there already."""
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
    """None where there are none. DataError for a file that cannot be read."""
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
    """What a model belongs to. A model fits only the shard, the start, the settings and the common basis that it was
    trained with; `basis` is its digest, "" without one. `chosen_for`: the training pairs that the shard had when start
    and recipe were chosen. `number`: that sets its version apart from another of the same run and round, see `numbers`;
    0: none. `carried`: was what a run had trained taken over from another shard? `kept_at`: UTC, ISO 8601; "" in files
    of earlier versions, which have no `relevance`."""

    format: str = FORMAT
    shard: str
    run: str
    round: int
    method: MethodSettings
    kind: str = ""
    start: Filter | None
    recipe: Recipe | None = None
    basis: str = ""
    chosen_for: int = 0
    number: int = 0
    carried: bool = False
    relevance: Relevance | None = None
    parameters: str = ""
    kept_at: str = ""

    @property
    def version(self) -> str:
        """Short name of a model, shown with each recommendation."""
        return name_version(self.run, self.round, self.number)

    @property
    def is_trained(self) -> bool:
        """Has training changed anything of what follows from its shard alone?"""
        return self.carried or (self.run != REFRESH and self.round > 0)


def name_version(run: str, number: int, apart: int = 0) -> str:
    """Of the model of a run's round; `apart`: see `ModelHead.number`."""
    return f"{run}.{number}~{apart}" if apart else f"{run}.{number}"


def save_model(folder: Path, model: nn.Module, head: ModelHead) -> ModelHead:
    """Parameters first, then the head that names their file: whoever reads sees the old pair or the new one.

    Returns the head as it is written, with the file's name and the time.
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
    """The head of the model that is served from this folder, or None where there is none that can be read."""
    try:
        return ModelHead.model_validate_json((folder / CURRENT).read_bytes())
    except (OSError, ValidationError):
        return None


def load_tensors(folder: Path, head: ModelHead) -> dict[str, Tensor] | None:
    """All parameters of a kept model, on whichever shard; None where their file is missing or damaged."""
    try:
        return load_file(folder / head.parameters)
    except (OSError, SafetensorError):
        return None


def load_parameters(folder: Path, head: ModelHead, model: nn.Module) -> bool:
    """Fill the model; False, and nothing changed, where the file is missing, damaged or of another shape."""
    tensors = load_tensors(folder, head)
    own = dict(model.named_parameters())
    if tensors is None or {k: v.shape for k, v in tensors.items()} != {k: v.shape for k, v in own.items()}:
        return False
    with torch.no_grad():
        for name, value in tensors.items():
            own[name].copy_(value)
    return True


@dataclass(frozen=True)
class Served(FrozenModel):
    """A model of users and items. ranker: from it lists come."""

    model: Model
    ranker: Ranker = field(kw_only=True)

    @cached_property
    def directions(self) -> Float32:
        """Item embeddings of length one, (N, q), for items like an item."""
        rows = self.ranker.items.embedding
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return (rows / np.where(length > 0, length, 1.0)).astype(np.float32)


def freeze(version: str, training: ItemTrainer) -> Served:
    """A copy of the parameters; the constant buffers and the fusion, which are large, are shared with the original."""
    model = training.model
    constant = {id(buffer): buffer for buffer in model.buffers()}
    frozen = copy.deepcopy(model, memo=constant).requires_grad_(False)
    frozen.encoder.prepare_inference()
    return Served(version, frozen, ranker=frozen.freeze().fused(training.fusion, training.codes))
