"""A model in training on a shard, and what was trained on another one -> the model with all of it that both have."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from client_service.learning.local import LocalTraining
from client_service.models.carrying import (
    ShardRows,
    are_alike,
    carry_plain,
    carry_rows,
    changed_users,
    match_rows,
    print_users,
)
from client_service.models.encoder import Encoder
from client_service.models.ranker import Rows
from client_service.shard import Shard


def rows_of_shard(shard: Shard) -> ShardRows:
    """Its users and items."""
    prints = print_users(shard.train, np.arange(len(shard.item_ids)))
    return ShardRows(shard.user_ids, shard.item_ids, shard.catalogue, prints)


def carry_training(training: LocalTraining, trained: Mapping[str, Tensor], old: ShardRows) -> bool:
    """Take over what was trained on a shard with the rows `old`; False, and nothing changed, where that is no such
    model, or of another catalogue.

    Users and items that both shards have keep their rows. Others begin where a run would begin, but users, and those
    whose new items no graph tells the model of, begin as a basket of their items would.
    """
    model, encoder, new = training.model, training.model.encoder, rows_of_shard(training.shard)
    kinds, matched = encoder.row_kinds, match_rows(old, new)
    if old.catalogue != new.catalogue or not are_alike(model, kinds, trained):
        return False
    carry_plain(model, kinds, trained)
    encoder.finish_training()
    encoder.begin_beside(trained["embedding"], matched["nodes"])
    carry_rows(model, kinds, trained, matched)
    if not encoder.begins_at_filter:
        strangers = changed_users(old, new, matched, training.shard.train)
        if encoder.sees_new_edges:
            strangers = np.setdiff1d(strangers, matched["users"].new)
        _begin_as_baskets(encoder, training.shard.train, strangers)
    return True


@torch.no_grad()
def _begin_as_baskets(encoder: Encoder, interactions: sparse.csr_array, users: Rows) -> None:
    if not len(users):
        return
    encoder.embedding[torch.from_numpy(users)] = encoder.embed_baskets(sparse.csr_array(interactions[users]))
