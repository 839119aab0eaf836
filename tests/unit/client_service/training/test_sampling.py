"""Batches: every training pair once an epoch, common negatives, and an exact mark on those that are none."""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse

from client_service.training.sampling import Batch, PairSampler

GRAPH = sparse.csr_array([[1.0, 0, 0, 1, 0], [0, 1, 0, 0, 1], [1, 1, 1, 0, 0]])
CPU = torch.device("cpu")


def epoch(seed: int, *, batch_size: int = 3, negatives: int = 40) -> list[Batch]:
    sampler = PairSampler(GRAPH, batch_size=batch_size, negatives=negatives, device=CPU)
    return list(sampler.epoch(torch.Generator().manual_seed(seed)))


def pairs(batches: list[Batch]) -> list[tuple[int, int]]:
    return [(int(u), int(i)) for batch in batches for u, i in zip(batch.users, batch.items, strict=True)]


def test_every_training_pair_comes_exactly_once_an_epoch() -> None:
    expected = [(0, 0), (0, 3), (1, 1), (1, 4), (2, 0), (2, 1), (2, 2)]
    for seed in range(5):
        assert sorted(pairs(epoch(seed))) == expected


def test_the_last_batch_holds_the_rest() -> None:
    assert [len(batch.users) for batch in epoch(0)] == [3, 3, 1]
    assert len(PairSampler(GRAPH, batch_size=3, negatives=1, device=CPU)) == 3
    assert len(PairSampler(GRAPH, batch_size=7, negatives=1, device=CPU)) == 1


def test_a_drawn_item_is_marked_exactly_where_the_user_has_it() -> None:
    dense = GRAPH.toarray()
    for batch in epoch(1):
        assert batch.negatives.shape == (40,)
        expected = dense[np.ix_(batch.users.numpy(), batch.negatives.numpy())] > 0
        assert batch.excluded.tolist() == expected.tolist()
        assert expected.any() and not expected.all()


def test_negatives_are_drawn_from_the_whole_catalogue_alike() -> None:
    drawn = torch.cat([batch.negatives for seed in range(10) for batch in epoch(seed, negatives=200)])
    # 6,000 draws of 5 items: 1,200 each, with a deviation of sqrt(6000 * .2 * .8) = 31.
    assert torch.bincount(drawn, minlength=5).sub(1200).abs().max().item() < 150


def test_the_same_generator_gives_the_same_batches_and_another_others() -> None:
    first, again, other = epoch(2), epoch(2), epoch(3)
    assert pairs(first) == pairs(again) != pairs(other)
    assert [b.negatives.tolist() for b in first] == [b.negatives.tolist() for b in again]
    assert [b.negatives.tolist() for b in first] != [b.negatives.tolist() for b in other]


def test_two_epochs_of_one_generator_differ() -> None:
    sampler, generator = PairSampler(GRAPH, batch_size=7, negatives=5, device=CPU), torch.Generator().manual_seed(0)
    assert pairs(list(sampler.epoch(generator))) != pairs(list(sampler.epoch(generator)))


def test_global_random_state_has_no_influence() -> None:
    torch.manual_seed(1)
    first = pairs(epoch(4))
    torch.manual_seed(2)
    assert pairs(epoch(4)) == first
