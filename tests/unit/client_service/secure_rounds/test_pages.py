"""The silo's page in a secure federation: a masked update is as declared, and one that lies open is not."""

from __future__ import annotations

from dataclasses import replace

from client_service.boundary.call_attempts import Attempt
from client_service.boundary.gate import declared_calls
from client_service.pages.ledger_view import matches_declaration
from client_service.pages.privacy_report import CALLS
from shared.method.declaration import Declaration, TensorSpec
from shared.web.pages import describe_declaration

OPEN = Declaration(strategy="lpsfed", tensors=(TensorSpec(name="w", shape=(2, 3)),), scalars=("margin", "rho"))
SECURE = OPEN.model_copy(update={"secure": True})
FIELDS = (
    {"name": "#scalars", "dtype": "U64", "shape": [1], "bytes": 8},
    {"name": "w", "dtype": "U64", "shape": [2, 3], "bytes": 48},
)
MASKED = Attempt(1, "now", "update", "run-1", 1, 300, "0" * 64, FIELDS, {"rho": 0.5})


def test_a_masked_update_is_as_a_secure_federation_declares_it_and_no_other() -> None:
    assert matches_declaration(MASKED, SECURE) and not matches_declaration(MASKED, OPEN)
    assert not matches_declaration(replace(MASKED, scalars={"rho": 0.5, "margin": 0.1}), SECURE)
    assert not matches_declaration(replace(MASKED, tensors=tuple(one | {"dtype": "F32"} for one in FIELDS)), SECURE)
    assert not matches_declaration(replace(MASKED, tensors=FIELDS[1:]), SECURE)
    assert matches_declaration(Attempt(2, "now", "keys", "run-1", 1, 300), SECURE)


def test_the_page_says_what_may_leave_and_what_each_call_is_for() -> None:
    shown = describe_declaration(SECURE)
    assert [(one.name, one.kind) for one in shown.fields] == [
        ("w", "masked tensor"),
        ("#scalars", "masked tensor"),
        ("rho", "scalar"),
    ]
    assert "only the sum of all clients’ can be read" in shown.sentence
    assert [one.kind for one in describe_declaration(OPEN).fields] == ["float32 tensor", "scalar", "scalar"]
    assert {call.name for call in declared_calls("east", secure=True)} == set(CALLS)
