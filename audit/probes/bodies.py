"""Bodies that the probes send, always the same, so that a report can recognise them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from safetensors.numpy import save

from shared.method.declaration import TRAINING, Declaration
from shared.method.parameters import STORED, Array, Form, Parameters
from shared.protocol.masked_wire import encode_masked
from shared.protocol.schemas import JoinIn
from shared.protocol.secure import vectors
from shared.protocol.secure.messages import MaskedHeader, hidden_scalars, visible_scalars
from shared.protocol.secure.vectors import MaskedUpdate
from shared.protocol.wire import encode_body

ANOTHER = "another-client"  # where no other client is known
NOTHING = b"{}"
VALUE = 0.5
WORD = "probe"  # name of every undeclared field
HEADER = "x-note"  # header that no client sends


def well_formed_update(declaration: Declaration) -> bytes:
    """Makes an update as declared, of constant values."""
    return encode_body(Parameters(_declared_arrays(declaration), _declared_scalars(declaration)))


def malformed_updates(declaration: Declaration) -> dict[str, bytes]:
    """Makes updates that each differ from the declaration in one respect, by name."""
    arrays, scalars = _declared_arrays(declaration), _declared_scalars(declaration)
    more = np.full(3, VALUE, dtype=np.float32)
    whole = {"scalars": json.dumps(scalars)}
    bodies = {
        "one tensor more": encode_body(Parameters({**arrays, WORD: more}, scalars)),
        "one scalar more": encode_body(Parameters(arrays, {**scalars, WORD: VALUE})),
        "one metadata field more": _with_metadata(well_formed_update(declaration)),
        "bytes after the end": well_formed_update(declaration) + WORD.encode(),
        "spaces in the header": change_header(well_formed_update(declaration), "", " " * 64),
    }
    if scalars:
        bodies["a scalar spelt anew"] = change_header(well_formed_update(declaration), f"{VALUE}", f"{VALUE}0")
    if arrays:
        more_fields = f'"{WORD}":"{WORD}","dtype":'
        bodies["a field more in the header"] = change_header(well_formed_update(declaration), '"dtype":', more_fields)
        name, value = next(iter(sorted(arrays.items())))
        changed: dict[str, Any] = {
            "another shape": np.concatenate([value.ravel(), value.ravel()]),
            "a NaN": np.full(value.shape, np.nan, dtype=np.float32),
            "another dtype": value.astype(np.float64),
        }
        bodies |= {what: save({**arrays, name: other}, metadata=whole) for what, other in changed.items()}
    return bodies


def probed_declaration(declaration: Declaration) -> Declaration:
    """Returns the declaration that the probes' updates imitate.

    It is that of a training run; or that of the first sum, if a training run sends no tensors.
    """
    training = declaration.of_part(TRAINING)
    return training if training.uploaded or not declaration.sums else next(iter(declaration.sums.values()))


def join_body(declaration: Declaration, client: str) -> bytes:
    """Makes a join message as that client would write it."""
    return JoinIn(client=client, declaration=declaration).model_dump_json().encode()


def join_body_with_more(declaration: Declaration, client: str) -> bytes:
    """Makes a join message with an undeclared field."""
    return json.dumps(json.loads(join_body(declaration, client)) | {WORD: WORD}).encode()


def body_digests(declaration: Declaration, client: str, others: Iterable[str]) -> frozenset[tuple[str, int]]:
    """Returns sha256 and length of every body that the probes of this client may send."""
    return frozenset((hashlib.sha256(body).hexdigest(), len(body)) for body in _all_bodies(declaration, client, others))


def _all_bodies(declaration: Declaration, client: str, others: Iterable[str]) -> Iterator[bytes]:
    yield b""
    yield NOTHING
    yield well_formed_update(probed_declaration(declaration))
    yield from malformed_updates(probed_declaration(declaration)).values()
    yield join_body_with_more(declaration, client)
    yield from (join_body(declaration, other) for other in (*others, ANOTHER))


def _with_metadata(body: bytes) -> bytes:
    """Adds a metadata field to a body.

    By hand, because safetensors writes several in a random order.
    """
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    header["__metadata__"][WORD] = WORD
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body[8 + length :]


def change_header(body: bytes, old: str, new: str) -> bytes:
    """Replaces text in a body's header, or appends to it where `old` is empty.

    A reader of safetensors sees no difference.
    """
    length = int.from_bytes(body[:8], "little")
    text = body[8 : 8 + length].decode()
    changed = (text.replace(old, new, 1) if old else text + new).encode()
    return len(changed).to_bytes(8, "little") + changed + body[8 + length :]


def _declared_arrays(declaration: Declaration) -> dict[str, Any]:
    return {spec.name: np.full(spec.shape, VALUE, dtype=STORED[spec.dtype]) for spec in declaration.tensors}


def _declared_scalars(declaration: Declaration) -> dict[str, float]:
    return dict.fromkeys(sorted(declaration.scalars), VALUE)


MASKED_VALUE = VALUE


def probe_bodies(declaration: Declaration, client: str, run: str, number: int) -> tuple[bytes, dict[str, bytes]]:
    """Makes a valid update of constant values, and bodies with one fault each, by name."""
    if not declaration.secure:
        return well_formed_update(declaration), malformed_updates(declaration)
    drawn = {name: _draw_ring(form) for name, form in vectors.vector_layout(declaration).items()}
    opened_scalars = dict.fromkeys(sorted(visible_scalars(declaration)), MASKED_VALUE)
    fields: dict[str, Any] = {"run": run, "round": number, "client": client, "scalars": opened_scalars}
    whole = _masked_body(drawn, fields)
    hidden = dict.fromkeys(hidden_scalars(declaration) or (WORD,), MASKED_VALUE)
    opened = {
        name: np.zeros(form.shape, dtype=STORED[form.dtype])
        for name, form in vectors.vector_layout(declaration).items()
    }
    return whole, {
        "an update that is not masked": well_formed_update(declaration),
        "fixed point that is not masked": _masked_body(opened, fields),
        "one tensor more": _masked_body({**drawn, WORD: _draw_ring(Form("U64", (3,)))}, fields),
        "one scalar more": _masked_body(drawn, fields | {"scalars": {**fields["scalars"], **hidden}}),
        "another round's": _masked_body(drawn, fields | {"round": number + 1}),
        "another digest": _masked_body(drawn, fields | {"digest": "0" * 64}),
        "bytes after the end": whole + WORD.encode(),
        "spaces in the header": change_header(whole, "", " " * 64),
    }


def masked_digests(
    declaration: Declaration, client: str, places: Iterable[tuple[str, int]]
) -> frozenset[tuple[str, int]]:
    """Returns sha256 and length of the probes' bodies for these runs and rounds."""
    sent = (body for run, number in places for body in _round_bodies(declaration, client, run, number))
    return frozenset((hashlib.sha256(body).hexdigest(), len(body)) for body in sent)


def _round_bodies(declaration: Declaration, client: str, run: str, number: int) -> Iterator[bytes]:
    whole, malformed = probe_bodies(probed_declaration(declaration), client, run, number)
    yield from (whole, *malformed.values())
    for declared in declaration.sums.values():
        yield probe_bodies(declared, client, run, number)[0]


def _draw_ring(form: Form) -> Array:
    """Draws the same random numbers each time, so that a body can be recognised."""
    dtype = np.dtype(STORED[form.dtype])
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, form.shape, dtype, endpoint=True)


def _masked_body(pieces: dict[str, Array], fields: dict[str, Any]) -> bytes:
    header = MaskedHeader.model_validate({"digest": vectors.digest_vector(pieces)} | fields)
    return encode_masked(MaskedUpdate(header, pieces))
