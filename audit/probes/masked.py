"""A secure round's updates, well-formed and not: drawn numbers stand for masked ones, which look no different."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from audit.probes import bodies
from shared.method.declaration import Declaration
from shared.method.parameters import STORED, Array, Form
from shared.protocol.masked_wire import encode_masked
from shared.protocol.secure import vectors
from shared.protocol.secure.messages import MaskedHeader, hidden_scalars, visible_scalars
from shared.protocol.secure.vectors import MaskedUpdate

VALUE = bodies.VALUE


def probe_bodies(declaration: Declaration, client: str, run: str, number: int) -> tuple[bytes, dict[str, bytes]]:
    """An update as this federation takes them, of values that nobody has trained; and bodies that each differ from it
    in one respect, by what that is."""
    if not declaration.secure:
        return bodies.well_formed_update(declaration), bodies.malformed_updates(declaration)
    drawn = {name: _draw_ring(form) for name, form in vectors.layout(declaration).items()}
    opened_scalars = dict.fromkeys(sorted(visible_scalars(declaration)), VALUE)
    said: dict[str, Any] = {"run": run, "round": number, "client": client, "scalars": opened_scalars}
    whole = _masked_body(drawn, said)
    hidden = dict.fromkeys(hidden_scalars(declaration) or (bodies.WORD,), VALUE)
    opened = {
        name: np.zeros(form.shape, dtype=STORED[form.dtype]) for name, form in vectors.layout(declaration).items()
    }
    return whole, {
        "an update that is not masked": bodies.well_formed_update(declaration),
        "fixed point that is not masked": _masked_body(opened, said),
        "one tensor more": _masked_body({**drawn, bodies.WORD: _draw_ring(Form("U64", (3,)))}, said),
        "one scalar more": _masked_body(drawn, said | {"scalars": {**said["scalars"], **hidden}}),
        "another round's": _masked_body(drawn, said | {"round": number + 1}),
        "another digest": _masked_body(drawn, said | {"digest": "0" * 64}),
        "bytes after the end": whole + bodies.WORD.encode(),
        "spaces in the header": bodies.with_header(whole, "", " " * 64),
    }


def sums_body(declaration: Declaration, client: str, run: str, number: int) -> bytes:
    """An update as this federation's basis runs take them."""
    return probe_bodies(declaration.of_part("basis"), client, run, number)[0]


def masked_digests(
    declaration: Declaration, client: str, places: Iterable[tuple[str, int]]
) -> frozenset[tuple[str, int]]:
    """sha256 and length of every body that the probes of this client may send to these runs and rounds."""
    sent = (body for run, number in places for body in _round_bodies(declaration, client, run, number))
    return frozenset((hashlib.sha256(body).hexdigest(), len(body)) for body in sent)


def _round_bodies(declaration: Declaration, client: str, run: str, number: int) -> Iterator[bytes]:
    whole, malformed = probe_bodies(declaration, client, run, number)
    yield from (whole, *malformed.values())
    if declaration.basis is not None:
        yield sums_body(declaration, client, run, number)


def _draw_ring(form: Form) -> Array:
    """The same each time: what the probes have sent is known again."""
    dtype = np.dtype(STORED[form.dtype])
    drawn: Array = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, form.shape, dtype, endpoint=True)
    return drawn


def _masked_body(pieces: dict[str, Array], said: dict[str, Any]) -> bytes:
    header = MaskedHeader.model_validate({"digest": vectors.digest(pieces)} | said)
    return encode_masked(MaskedUpdate(header, pieces))
