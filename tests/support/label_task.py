"""Complete task that tells two kinds of rows apart: the example that CONTRIBUTING names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from client_service.data.tables import read_table
from client_service.evaluation.metrics import MeasureLabel, Measures
from client_service.model_store.model_server import FrozenModel
from client_service.runtime.interruption import Interrupt
from client_service.serving.model_server import ModelServer
from client_service.settings import ClientSettings
from client_service.tasks.page_texts import Nouns, Trial
from client_service.tasks.task import Task
from client_service.training.trainer import Trainer
from shared.method.declaration import Counts
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.method.tensors import Tensor

Int64 = NDArray[np.int64]

TRAIN, VALID, TEST = 0, 1, 2


@dataclass(frozen=True)
class LabelShard:
    """Rows with features (M, q) and labels 0 or 1 (M,), split in turn into training, validation and test."""

    name: str
    features: Float32
    labels: Int64

    @cached_property
    def digest(self) -> str:
        """sha256 of features and labels, from which the model is trained."""
        return hashlib.sha256(self.features.tobytes() + self.labels.tobytes()).hexdigest()

    @property
    def lists_digest(self) -> str:
        """sha256 of the data that answers follow from."""
        return self.digest

    def of_split(self, split: int) -> Int64:
        """Returns the rows of a split."""
        return np.arange(split, len(self.labels), 3)


class LabelTrainer(Trainer):
    """Trains logistic regression."""

    task = "labels"
    shard: LabelShard

    def build_model(self) -> nn.Module:
        """Builds a linear layer."""
        return nn.Linear(self.method.width, 2)

    def draw_batches(self, generator: np.random.Generator) -> Iterable[Int64]:
        """Draws batches of training rows."""
        rows = generator.permutation(self.shard.of_split(TRAIN))
        return np.array_split(rows, -(-len(rows) // self.method.batch_size))

    def find_loss(self, rows: Int64) -> Tensor:
        """Computes the cross entropy of a batch."""
        features, labels = torch.from_numpy(self.shard.features[rows]), torch.from_numpy(self.shard.labels[rows])
        return nn.functional.cross_entropy(self.model(features.to(self.device)), labels.to(self.device))


class Labels(ModelServer):
    """Answers each row with its more likely label; without a model with 0."""

    score_meaning = "probability of the label"

    def __init__(self, shard: LabelShard) -> None:
        del shard
        super().__init__()

    def answer(self, features: Float32) -> Int64:
        """Returns the label of each row, (B,)."""
        return np.zeros(len(features), dtype=np.int64) if self.served is None else predict(self.served, features)


@torch.no_grad()
def predict(served: FrozenModel, features: Float32) -> Int64:
    """Computes the more likely label of each row, (B,)."""
    return served.model(torch.from_numpy(features)).argmax(1).numpy()


def measure_accuracy(split: int, shard: LabelShard, served: FrozenModel, interrupt: Interrupt) -> Measures:
    """Computes the share of a split's rows with the right label."""
    rows = shard.of_split(split)
    right = interrupt.check_before(predict)(served, shard.features[rows]) == shard.labels[rows]
    return Measures({"accuracy": float(right.mean())}, len(rows), "accuracy")


def read_labels(settings: ClientSettings) -> LabelShard:
    """Reads rows.parquet: label, and a column for each feature. Raises DataError for another file."""
    table = read_table(settings.shard / "rows.parquet")
    return LabelShard(settings.name, table.drop("label").to_numpy().astype(np.float32), table["label"].to_numpy())


TASK = Task(
    name="labels",
    labels={"accuracy": MeasureLabel("accuracy", "Accuracy")},
    primary="accuracy",
    nouns=Nouns("row", "row", "row"),
    load_shard=read_labels,
    count=lambda shard: Counts(users=len(shard.labels), items=shard.features.shape[1], edges=len(shard.labels)),
    count_judged=lambda shard: len(shard.of_split(VALID)),
    trainer=LabelTrainer,
    judge=partial(measure_accuracy, VALID),
    test=partial(measure_accuracy, TEST),
    answer=Labels,
    try_out=lambda question, _: Trial(user="", k=question.k),
)


def softmax_specification(sizes: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the weights (2, q) and biases."""
    return Tensor("bias", (2,), "zeros"), Tensor("weight", (2, sizes.width))
