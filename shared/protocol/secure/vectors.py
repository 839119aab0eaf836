"""Masked vectors of a secure round: declared tensors, masks, hidden scalars."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from shared.errors import PrivacyError, ProtocolError
from shared.method.declaration import Declaration
from shared.method.parameters import (
    STORED,
    Array,
    Arrays,
    Form,
    Parameters,
    array_form,
    array_part,
    blocks,
    stored_parts,
)
from shared.protocol.gate import require_declared
from shared.protocol.secure import fixed_point
from shared.protocol.secure.messages import MaskedHeader, hidden_scalars

Sign = Literal[1, -1]
CHUNK = 1 << 15  # numbers at a time: 256 kB of stream stay in the processor's cache
ZEROS = memoryview(bytes(8 * CHUNK))


@dataclass(frozen=True)
class MaskStream:
    """Seed of a mask, and whether it is added (1) or subtracted (-1)."""

    seed: bytes = field(repr=False)
    sign: Sign

    @cached_property
    def cipher(self) -> CipherContext:
        """Cipher of the seed, set up once for all tensors: most of them are short."""
        return Cipher(ChaCha20(self.seed, _nonce(0)), mode=None).encryptor()


def mask_sign(own: str, other: str) -> Sign:
    """Returns 1 if the own name comes first, else -1.

    Of two clients the first by name adds their common mask and the other subtracts it.
    """
    return 1 if own < other else -1


def add_masks(values: Array, masks: Iterable[MaskStream], *, piece: int) -> Array:
    """Adds masks to a tensor, modulo 2^32 for uint32, else 2^64.

    piece: number of the tensor in the vector. The result is a new array: in place, a tensor in another order of
    memory would be flattened as a copy and stay without a mask.
    """
    ring = np.uint32 if values.dtype == np.uint32 else np.uint64
    flat = np.array(values, dtype=ring, order="C").reshape(-1)
    add_masks_in_place(flat, masks, piece=piece)
    return flat.reshape(values.shape)


def mask_pieces(layout: Mapping[str, Form]) -> list[tuple[str, ...]]:
    """Groups the tensors of a vector into pieces, each with a stream of every mask.

    Tensors of one ring that follow each other are one piece as long as it has no more numbers than a chunk: most are
    short, and a start of a stream costs as much as a thousand numbers.
    """
    pieces: list[tuple[str, ...]] = []
    ring, room = "", 0
    for name, form in layout.items():
        if form.dtype == ring and form.size <= room:
            pieces[-1] += (name,)
        else:
            pieces.append((name,))
            ring, room = form.dtype, CHUNK
        room -= form.size
    return pieces


def mask_vector(layout: Mapping[str, Form], vector: Arrays, masks: Sequence[MaskStream]) -> dict[str, Array]:
    """Adds masks to all tensors of a vector."""
    masked: dict[str, Array] = {}
    for piece, names in enumerate(mask_pieces(layout)):
        flat = np.concatenate([np.ravel(vector[name]) for name in names])
        add_masks_in_place(flat, masks, piece=piece)
        masked |= split_piece(layout, names, flat)
    return masked


def split_piece(layout: Mapping[str, Form], names: Sequence[str], flat: Array) -> dict[str, Array]:
    """Splits a piece into its tensors."""
    ends = list(accumulate(layout[name].size for name in names))
    parts = zip(names, np.split(flat, ends[:-1]), strict=True)
    return {name: part.reshape(layout[name].shape) for name, part in parts}


def add_masks_in_place(flat: Array, masks: Iterable[MaskStream], *, piece: int) -> None:
    """Adds masks in place to a tensor in row order in one dimension.

    What does not depend on the mask is made once: there are dozens of masks, and most tensors are short.
    """
    nonce, spans = _nonce(piece), list(_chunks(flat))
    for mask in masks:
        combine, stream = np.add if mask.sign == 1 else np.subtract, mask.cipher
        stream.reset_nonce(nonce)
        for values, drawn, zeros, target in spans:
            stream.update_into(zeros, target)
            combine(values, drawn, out=values)


def _chunks(flat: Array) -> Iterator[tuple[Array, Array, memoryview, memoryview]]:
    """Yields each chunk with the buffer for its mask.

    The buffer comes as numbers and as bytes, before these as many zeros.
    """
    buffer = np.empty(min(CHUNK, flat.size), dtype=flat.dtype.newbyteorder("<"))
    for start in range(0, flat.size, CHUNK):
        values = flat[start : start + CHUNK]
        drawn = buffer[: values.size]
        yield values, drawn, ZEROS[: drawn.nbytes], drawn.view(np.uint8).data


def _nonce(piece: int) -> bytes:
    """Returns the stream's start: counter 0 and the piece's number.

    OpenSSL counts blocks in the first 8 bytes, RFC 8439 in the first 4: both start at 0 here, and neither runs into
    the piece's number.
    """
    return bytes(8) + piece.to_bytes(8, "little")


Vector = Arrays  # of uint64, or of uint32
RING = "U64"  # type of tensors in fixed point
SCALARS = "#scalars"  # no declared tensor can have this name
LEAST_NUMBERS = 16  # smallest tensor whose numbers show whether it is masked
SMALL = {"U64": (np.int64, fixed_point.LIMIT / fixed_point.STEP), "U32": (np.int32, 2.0**20)}
"""Signed type of each type of a tensor, and the size up to which a number is small; of masked numbers 1 in 2,048 is."""


class MaskedUpdate(NamedTuple):
    """Message of phase `masked`: a header, and tensors that look like noise."""

    header: MaskedHeader
    vector: Vector


def vector_layout(declaration: Declaration) -> dict[str, Form]:
    """Returns the form of every piece of a vector, in order.

    Tensors by name, then the scalars.
    """
    specs = sorted(declaration.uploaded, key=lambda spec: spec.name)
    tensors = {spec.name: Form("U32" if spec.dtype == "U32" else RING, spec.shape) for spec in specs}
    return tensors | ({SCALARS: Form(RING, (len(hidden),))} if (hidden := hidden_scalars(declaration)) else {})


def encode_vector(declaration: Declaration, content: Parameters) -> dict[str, Array]:
    """Encodes the whole vector as integers.

    Raises PrivacyError if it is not as declared, ProtocolError if a value is out of range.
    """
    require_declared(declaration, content)
    hidden = hidden_scalars(declaration)
    if missing := sorted(set(hidden) - set(content.scalars)):
        raise PrivacyError(f"expected a value for every hidden scalar, none came for {missing}")
    pieces = {n: _encode(form, content.arrays[n], n) for n, form in vector_layout(declaration).items() if n != SCALARS}
    values = np.array([content.scalars[name] for name in hidden], dtype=np.float64)
    return pieces | ({SCALARS: fixed_point.encode(values, SCALARS)} if hidden else {})


def _encode(expected: Form, value: Array, name: str) -> Array:
    return fixed_point.encode(value, name) if expected.dtype == RING else np.asarray(value)


def digest_vector(vector: Vector) -> str:
    """Computes the sha256 over names, shapes and little-endian bytes in name order."""
    total = hashlib.sha256()
    for name in sorted(vector):
        kind = array_form(vector, name)
        total.update(f"{name}{kind.shape}".encode())
        for stored in stored_parts(vector, name, blocks(kind.size)):
            total.update(stored.data)
    return total.hexdigest()


def require_declared_vector(declaration: Declaration, vector: Vector, expected: str) -> None:
    """Raises ProtocolError unless a vector has the declared pieces and this digest."""
    pieces = vector_layout(declaration)
    if set(vector) != set(pieces):
        raise ProtocolError(f"expected masked tensors {sorted(pieces)}, got {len(vector)} of other names")
    for name, piece in pieces.items():
        if array_form(vector, name) != piece:
            wanted, got = np.dtype(STORED[piece.dtype]), vector[name]
            raise ProtocolError(
                f"expected {wanted} {list(piece.shape)}, got {got.dtype} {list(got.shape)} for {name!r}"
            )
    if (came := digest_vector(vector)) != expected:
        raise ProtocolError(f"expected a masked vector of digest {expected}, got {came}")


def is_unmasked(vector: Vector, name: str) -> bool:
    """Tells whether numbers are unmasked: more than half of them are small.

    In fixed point a number is small if it can be encoded, up to 2^52 of 2^64 numbers; modulo 2^32 if it is at most
    2^20 in size in two's complement: a count up to a million, or up to 16 in multiples of 2^-16. Either way a masked
    number is small once in 2,048 times, so that half of sixteen are small less than once in 2^70 times, and half of n
    less than once in 2^(4.5 n). A tensor of fewer than LEAST_NUMBERS numbers counts as masked.
    """
    kind = array_form(vector, name)
    small = sum(_count_small(array_part(vector, name, *span), kind.dtype) for span in blocks(kind.size))
    return kind.size >= LEAST_NUMBERS and 2 * small > kind.size


def _count_small(values: Array, dtype: str) -> int:
    signed, limit = SMALL[dtype]
    return int(np.count_nonzero(np.abs(values.view(signed).astype(np.float64)) <= limit))


def decode_mean(declaration: Declaration, totals: Iterable[tuple[str, Array]], count: int) -> Parameters:
    """Computes mean arrays (float32) and scalars from unmasked sums over `count` clients.

    The sum of a U32 tensor is returned as it is.
    """
    arrays: dict[str, Array] = {}
    scalars: dict[str, float] = {}
    for name, total in totals:
        if name == SCALARS:
            scalars = dict(zip(hidden_scalars(declaration), fixed_point.mean(total, count).tolist(), strict=True))
        elif total.dtype == np.uint32:
            arrays[name] = total
        else:
            arrays[name] = fixed_point.mean(total, count).astype(np.float32)
    return Parameters(arrays, scalars)
