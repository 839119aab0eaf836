"""The probes' bodies for a declaration with integers: the well-formed one is taken, and each malformed one refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator_service.rounds.uploads import read_scalars
from audit.probes.bodies import probe_bodies
from shared.errors import ProtocolError
from shared.method.declaration import Declaration, TensorSpec
from shared.protocol.masked_wire import open_masked

TENSORS = (TensorSpec(name="basis.n", dtype="U32", shape=(40,)), TensorSpec(name="w", shape=(6, 6)))
DECLARATION = Declaration(strategy="lpsfed", tensors=TENSORS, scalars=("margin", "rho"))
OTHER_ROUND = "another round's"  # which the address of its call tells, not its form


@pytest.mark.parametrize("secure", [False, True])
def test_only_the_well_formed_body_is_taken(secure: bool, tmp_path: Path) -> None:
    declaration, path = DECLARATION.model_copy(update={"secure": secure}), tmp_path / "body"
    read = open_masked if secure else read_scalars
    whole, malformed = probe_bodies(declaration, "ada", "run-1", 1)
    path.write_bytes(whole)
    read(declaration, str(path))
    for what in set(malformed) - {OTHER_ROUND}:
        path.write_bytes(malformed[what])
        with pytest.raises(ProtocolError):
            read(declaration, str(path))
