"""Content sums add up how item features occur together, without item ids.

They are three small matrices. A silo encodes its items by the one function that the federation has agreed on, the
encoder, as T (N, d) with a last column of ones. With P = X T it sends A = P^T P, D = A - T^T diag(n) T, n the users of
each item, and S = T^T T: 3 d (d + 1) / 2 numbers (client_service.models.closed_form.content). No item needs to be in
common, and there is no list of items.

A number has three words (`WideNumbers`): two of 16 bits, whose sums have room for 2^16 silos, and one with its sign.
"""

from __future__ import annotations

from collections.abc import Mapping

from shared.errors import SettingsError
from shared.method.declaration import Part
from shared.method.settings import BasisSettings, MethodSettings
from shared.method.tensors import Tensor
from shared.sums.sum import Shapes, Sum
from shared.sums.wide_numbers import WideNumbers

WORD = "content"
CONTENT: Part = "content"
"""The part of a run that sums how features of items go together."""
PROFILES, PAIRS, ITEMS = "content.profiles", "content.pairs", "content.items"
TENSORS = (PROFILES, PAIRS, ITEMS)
WORDS, BITS = 3, 16
OF_USERS, OF_ITEMS = WideNumbers(WORDS, BITS, 20), WideNumbers(WORDS, BITS, 32)  # the sums over items are smaller
FORMS = {PROFILES: OF_USERS, PAIRS: OF_USERS, ITEMS: OF_ITEMS}
MOST_WIDTH = 1024


def count_features(encoder: str) -> int:
    """Counts the columns of T for an encoder "kind/width/version".

    They are its width and the column of ones. Raises SettingsError for another name.
    """
    width = encoder.split("/")[1] if encoder.count("/") == 2 else ""
    if not (width.isdecimal() and 1 <= int(width) <= MOST_WIDTH):
        expected = f"expected the name of an encoder, kind/width/version with a width up to {MOST_WIDTH:,}"
        raise SettingsError(f"sums.content.encoder: {expected}, got {encoder!r}")
    return int(width) + 1


def content_tensors(method: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of the upper triangles of A, D and S.

    They are (WORDS, d (d + 1) / 2) each. SettingsError for an encoder without a width.
    """
    size = count_features(method.basis.encoder)
    shape = (WORDS, size * (size + 1) // 2)
    return tuple(Tensor(name, shape, "zeros", dtype="U32") for name in TENSORS)


def content_sizes(basis: BasisSettings, shapes: Shapes) -> Mapping[str, int]:
    """Returns no sizes, because all follow from the encoder in the settings."""
    del basis, shapes
    return {}


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
    statistics="how features of its items go together in users",
    tensors=content_tensors,
    own_names=frozenset(TENSORS),
    sizes=content_sizes,
    fraction_bits={name: one.fraction for name, one in FORMS.items()},
    steady=("basis.encoder",),
    row="column of features",
    reason="how features of items go together, because silos describe their items alike",
    part=CONTENT,
    listed=False,
    replaces_basis=True,
    words={
        PROFILES: "how features of its users' items go together, summed over users",
        PAIRS: "how features of two different items of a user go together, summed over users",
        ITEMS: "how features of an item of its catalogue go together, summed over items",
    },
    disclosure=describe_features,
)
