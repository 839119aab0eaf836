"""Masked updates as safetensors bodies, and the form of each body."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from shared.errors import ProtocolError
from shared.method.declaration import Declaration
from shared.method.parameters import Form
from shared.protocol.secure import vectors
from shared.protocol.secure.messages import MaskedHeader, visible_scalars
from shared.protocol.secure.vectors import MaskedUpdate, vector_layout
from shared.protocol.wire import StoredArrays, body_head_with, is_body_of, read_metadata, to_stored_array
from shared.strategies import find_strategy


def declare_answer(declaration: Declaration) -> Declaration:
    """Returns the declaration of the aggregator's answer to a client, never masked.

    The declared tensors and broadcasts, the scalars that the strategy returns, and in a secure federation those that
    the server tells each client.
    """
    strategy = find_strategy(declaration)
    returned = [name for name in declaration.scalars if strategy.scalars[name].returned]
    server_scalars = strategy.mixing.server_scalars if strategy.mixing is not None and declaration.secure else ()
    answered = {"tensors": declaration.answered, "scalars": (*returned, *server_scalars)}
    return declaration.model_copy(update={**answered, "secure": False, "reports": (), "broadcasts": ()})


def body_forms(declaration: Declaration) -> dict[str, Form]:
    """Returns the form of each tensor of an update's body, declared or masked."""
    if not declaration.secure:
        return {spec.name: spec.form for spec in declaration.uploaded}
    return vector_layout(declaration)


def readable_scalars(declaration: Declaration) -> tuple[str, ...]:
    """Lists the scalars that are readable in an update's body."""
    return tuple(sorted(visible_scalars(declaration))) if declaration.secure else declaration.scalars


FIELD = "masked"  # the one field of the metadata


def encode_masked(update: MaskedUpdate) -> bytes:
    """Encodes a masked update as a safetensors body, with its header as JSON metadata."""
    arrays = {name: to_stored_array(value) for name, value in sorted(update.vector.items())}
    return save(arrays, metadata={FIELD: update.header.model_dump_json()})


def decode_masked(declaration: Declaration, body: bytes) -> MaskedUpdate:
    """Decodes a masked update in memory; raises ProtocolError if it is not as declared.

    Also for another form of the same content.
    """
    try:
        arrays = load(body)
        fields = read_metadata(body)
    except (SafetensorError, ValueError, KeyError, RecursionError):
        raise ProtocolError("expected a safetensors body, got other content") from None
    found = MaskedUpdate(_header(fields), arrays)
    _require(declaration, found)
    if encode_masked(found) != body:
        raise ProtocolError("expected a masked vector in the canonical form that a client writes, got another form")
    return found


def open_masked(declaration: Declaration, path: str | Path) -> MaskedUpdate:
    """Opens a masked update on disk, reading tensors only when needed.

    Raises ProtocolError as `decode_masked` does.
    """
    try:
        with safe_open(path, framework="numpy") as body:
            fields = body.metadata() or {}
    except SafetensorError:
        raise ProtocolError("expected a safetensors body, got other content") from None
    header = _header(fields)
    if not is_body_of(path, _masked_head(declaration, header), masked_body_size(declaration, header)):
        raise ProtocolError("expected a masked vector in the canonical form that a client writes, got another form")
    found = MaskedUpdate(header, StoredArrays(path))
    _require(declaration, found)
    return found


def masked_body_size(declaration: Declaration, header: MaskedHeader) -> int:
    """Returns the bytes of a masked body with this header."""
    return len(_masked_head(declaration, header)) + sum(
        form.bytes for form in vectors.vector_layout(declaration).values()
    )


def _masked_head(declaration: Declaration, header: MaskedHeader) -> bytes:
    """Returns the bytes of a masked body before its numbers."""
    return body_head_with(vectors.vector_layout(declaration), {FIELD: header.model_dump_json()})


def _header(fields: Mapping[str, str]) -> MaskedHeader:
    try:
        return MaskedHeader.model_validate_json(fields[FIELD] if set(fields) == {FIELD} else "")
    except ValidationError:
        raise ProtocolError(f"expected the metadata field {FIELD!r} alone with a masked vector's header") from None


def _require(declaration: Declaration, found: MaskedUpdate) -> None:
    """Raises ProtocolError for undeclared open scalars, other tensors, or unmasked numbers."""
    if not set(found.header.scalars) <= visible_scalars(declaration):
        raise ProtocolError("expected a masked vector with only visible scalars, got others")
    vectors.require_declared_vector(declaration, found.vector, found.header.digest)
    if open_to_view := [name for name in found.vector if vectors.is_unmasked(found.vector, name)]:
        raise ProtocolError(f"expected masked numbers, {len(open_to_view)} tensors are not masked")
