"""PFedRec: score functions and item table are trained in turn. Its tuned rows are in client_service/test_factors.py."""

from __future__ import annotations

from unittest.mock import Mock, call

from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.pfedrec import pfedrec

METHOD = MethodSettings(width=2, catalogue=3)


def test_a_client_trains_first_its_score_functions_and_then_the_item_table() -> None:
    client, received = Mock(spec=LocalClient), Parameters({})
    sent = pfedrec(METHOD).fit(client, received)
    expected = [
        call.load(received),
        call.train(Objective(loss="bce", only="embedding")),
        call.train(Objective(loss="bce", only="item.")),
        call.arrays(),
    ]
    assert client.method_calls == expected
    assert sent.arrays is client.arrays.return_value and sent.scalars == {}


def test_the_item_table_alone_is_declared() -> None:
    declared = pfedrec(METHOD).declaration(METHOD)
    assert [(spec.name, spec.shape) for spec in declared.tensors] == [("item.table", (3, 2))]
    assert declared.scalars == ()
