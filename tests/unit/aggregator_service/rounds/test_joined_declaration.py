"""A client whose declaration differs is refused with the difference, and with how to agree where it lacks a sum."""

from __future__ import annotations

import pytest

from aggregator_service.rounds.members import require_same_declaration
from shared.errors import ProtocolError
from shared.method.declaration import Declaration, TensorSpec

WEIGHT, SUMMED = (Declaration(strategy=name, tensors=(TensorSpec(name="w", shape=(2,)),), scalars=()) for name in "ab")
SUMS = WEIGHT.model_copy(update={"sums": {"basis_exact": SUMMED}})


def test_a_silo_without_the_sums_is_told_how_to_agree() -> None:
    with pytest.raises(
        ProtocolError, match=r"basis_exact: expected a sum, got no sum; .*`lpsfed join` again, with --acc"
    ):
        require_same_declaration(SUMS, WEIGHT)


def test_another_difference_says_nothing_of_consent() -> None:
    for expected, observed in ((WEIGHT, SUMS), (WEIGHT, SUMMED)):
        with pytest.raises(ProtocolError) as refused:
            require_same_declaration(expected, observed)
        assert "--accept" not in str(refused.value)
    require_same_declaration(SUMS, SUMS)
