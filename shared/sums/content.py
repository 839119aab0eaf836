"""Content sums add up how item features occur together, without item ids.

They are three small matrices. A silo encodes its items by the one function that the federation has agreed on, the
encoder, as T (N, d) with a last column of ones. With P = X T it sends A = P^T P, D = A - T^T diag(n) T, n the users of
each item, and S = T^T T: 3 d (d + 1) / 2 numbers (client_service.models.closed_form.content). No item needs to be in
common, and there is no list of items.

A number has LIMBS words of 32 bits, because words are added modulo 2^32: two of 16 bits, whose sums have room for
2^16 silos, and one with its sign.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import Part
from shared.method.settings import BasisSettings, MethodSettings
from shared.method.tensors import Tensor
from shared.sums.sum import Float64, Shapes, Sum, UInt32

WORD = "content"
CONTENT: Part = "content"
"""The part of a run that sums how features of items go together."""
PROFILES, PAIRS, ITEMS = "content.profiles", "content.pairs", "content.items"
TENSORS = (PROFILES, PAIRS, ITEMS)
LIMBS, LIMB_BITS = 3, 16
FRACTION_BITS, ITEM_BITS = 20, 32  # of sums over users, and of those over items, which are smaller
WIDE_LIMIT = 2.0 ** (31 + LIMB_BITS * (LIMBS - 1) - FRACTION_BITS)  # a sum of this size or more has no place
MOST_SILOS = 1 << LIMB_BITS
FRACTIONS = {PROFILES: FRACTION_BITS, PAIRS: FRACTION_BITS, ITEMS: ITEM_BITS}
MOST_WIDTH = 1024


def count_features(encoder: str) -> int:
    """Counts the columns of T for an encoder "kind/width/version".

    They are its width and the column of ones. SettingsError for another name.
    """
    width = encoder.split("/")[1] if encoder.count("/") == 2 else ""
    if not (width.isdecimal() and 1 <= int(width) <= MOST_WIDTH):
        expected = f"expected the name of an encoder, kind/width/version with a width up to {MOST_WIDTH:,}"
        raise SettingsError(f"sums.content.encoder: {expected}, got {encoder!r}")
    return int(width) + 1


def content_tensors(method: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of the upper triangles of A, D and S.

    They are (LIMBS, d (d + 1) / 2) each. SettingsError for an encoder without a width.
    """
    size = count_features(method.basis.encoder)
    shape = (LIMBS, size * (size + 1) // 2)
    return tuple(Tensor(name, shape, "zeros", dtype="U32") for name in TENSORS)


def content_sizes(basis: BasisSettings, shapes: Shapes) -> Mapping[str, int]:
    """Returns no sizes, as all follow from the encoder that the settings name."""
    del basis, shapes
    return {}


def encode_wide(values: Float64, clients: int, name: str) -> UInt32:
    """Encodes values as the nearest multiples of 2^-b, b = FRACTIONS[name].

    Returns words, (LIMBS, n), lowest first. ProtocolError, without the values, where `clients` of that size could
    overflow a sum, or where one is not finite. name: of the tensor, whose sum the values belong to.
    """
    if clients > MOST_SILOS:
        raise ProtocolError(f"{name}: expected at most {MOST_SILOS:,} silos in a sum, got {clients:,}")
    bits = FRACTIONS[name]
    bound = WIDE_LIMIT * 2.0 ** (FRACTION_BITS - bits) / max(1, clients)
    if outside := int(np.count_nonzero(~(np.abs(values) < bound))):
        raise ProtocolError(f"{name}: expected values below {bound:g} in size, got {outside} others")
    whole = np.rint(values * 2.0**bits).astype(np.int64)
    low = [(whole >> (LIMB_BITS * place)) & (MOST_SILOS - 1) for place in range(LIMBS - 1)]
    return np.stack([*low, whole >> (LIMB_BITS * (LIMBS - 1))]).astype(np.uint32)


def decode_wide(words: NDArray[np.uint32], name: str) -> Float64:
    """Decodes the words of a tensor's sum to real numbers, (n,)."""
    *low, high = np.asarray(words)
    whole = np.ascontiguousarray(high).view(np.int32).astype(np.int64) << (LIMB_BITS * (LIMBS - 1))
    for place, one in enumerate(low):
        whole += one.astype(np.int64) << (LIMB_BITS * place)
    return whole.astype(np.float64) * 2.0 ** -FRACTIONS[name]


def describe_features(basis: BasisSettings) -> str:
    """Describes what all silos learn by content sums."""
    return (
        "which words, categories and years go together in what users have and in all catalogues, in"
        f" {count_features(basis.encoder):,} mixed columns; of few users or items in all silos, what these have or say"
    )


CONTENT_SUM = Sum(
    name="content",
    word=WORD,
    title="the content sums",
    tells="how features of its items go together in users",
    tensors=content_tensors,
    own_names=frozenset(TENSORS),
    sizes=content_sizes,
    fraction_bits=FRACTIONS,
    steady=("encoder",),
    part=CONTENT,
    listed=False,
    replaces_basis=True,
    words={
        PROFILES: "how features of its users' items go together, summed over users",
        PAIRS: "how features of two different items of a user go together, summed over users",
        ITEMS: "how features of an item of its catalogue go together, summed over items",
    },
    learnt=describe_features,
)
