"""Content sums at a silo: the features of its items, and the others' sums."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from client_service.data.interactions import Shard
from client_service.models.closed_form.content import ContentSums, add_constant, find_item_features, sum_content
from client_service.sums.silo_sum import FIXED_BYTES, Arrays, SiloSum, Statistics, SummedDigests, SumRound, Sums
from client_service.sums.statistics import training_digest
from client_service.text.item_features import ItemFeatures
from shared.errors import ProtocolError
from shared.method.declaration import Counts
from shared.method.graph import Float64
from shared.method.run_memory import SPARSE, Cost
from shared.method.settings import MethodSettings
from shared.sums.content import (
    CONTENT_SUM,
    FORMS,
    TENSORS,
    count_features,
)
from shared.sums.sum import EMPTY_PART_DIGEST

MOST_SUMMED = 1 << 14  # silos: more than a federation has
SLACK = 1e-6  # of the largest eigenvalue, by which rounding may leave one below 0


@dataclass(frozen=True, eq=False)
class ContentStatistics(Statistics):
    """Content sums of the other silos.

    A, D and S lack this silo's own part, so that its own data are never kept here. encoder: of the features. summed:
    sha256 over the sums of all silos, which is the digest, alike in every silo. items: S; None in a file of an earlier
    version, whose sums had none.
    """

    encoder: str
    summed: str
    profiles: Float64
    pairs: Float64
    items: Float64 | None = None

    @property
    def sums(self) -> ContentSums:
        """Sums A, D and S of the other silos."""
        return ContentSums(self.profiles, self.pairs, self.items)

    def metadata(self) -> dict[str, str]:
        """Describes the encoder and the sums of all silos.

        check: sha256 over the arrays, for the file.
        """
        items = b"" if self.items is None else self.items.tobytes()
        check = hashlib.sha256(self.profiles.tobytes() + self.pairs.tobytes() + items).hexdigest()
        return {"kind": self.kind, "encoder": self.encoder, "summed": self.summed, "check": check}

    @property
    def digest(self) -> str:
        """SHA-256 over the encoder and the sums of all silos."""
        return hashlib.sha256(f"{self.kind} {self.encoder} {self.summed}".encode()).hexdigest()


def count_content(shard: Shard, method: MethodSettings) -> ContentSums:
    """Computes A, D and S of the training pairs.

    Zeros where the silo has nothing to add (`find_agreed_features`).
    """
    features = find_agreed_features(shard, method)
    if features is None:
        size = count_features(method.basis.encoder)
        return ContentSums(*np.zeros((len(TENSORS), size, size)))
    return sum_content(sparse.csr_array(shard.train), add_constant(features.values))


def find_agreed_features(shard: Shard, method: MethodSettings) -> ItemFeatures | None:
    """Finds the features of a shard's items by the federation's encoder.

    None if items have no text or attribute, or features of another encoder: sums of two encoders are meaningless.
    """
    features = find_item_features(shard)
    return None if features is None or features.encoder != method.basis.encoder else features


def digest_content(shard: Shard, method: MethodSettings) -> SummedDigests:
    """Computes the digests of the summed data.

    They are of the training pairs, as for other sums; of the encoder, which all silos have that add more than zeros;
    and of the pairs with features. The last one changes where titles do: sums before and after would tell of this silo
    alone.
    """
    features, pairs = find_agreed_features(shard, method), training_digest(shard)
    digest = "" if features is None else features.digest
    of_both = hashlib.sha256(f"{pairs} {digest}".encode()).hexdigest()
    if features is None:
        return SummedDigests(pairs, EMPTY_PART_DIGEST, of_both)
    return SummedDigests(pairs, hashlib.sha256(features.encoder.encode()).hexdigest(), of_both)


def add_content(at: SumRound) -> Sums:
    """Encodes the upper triangles of A, D and S in words."""
    own: ContentSums = at.counted
    assert own.items is not None, "expected sums of this version"
    values = zip(TENSORS, (own.profiles, own.pairs, own.items), strict=True)
    return {name: FORMS[name].encode(_upper(one), at.clients, name) for name, one in values}


def finish_content(at: SumRound) -> ContentStatistics:
    """Computes the sums of the other silos.

    ProtocolError for sums that no data can have.
    """
    sums, encoder = at.sums[at.number], at.method.basis.encoder
    summed = hashlib.sha256(b"".join(np.ascontiguousarray(sums[name]).tobytes() for name in TENSORS))
    size = count_features(encoder)
    total = [_symmetric(FORMS[name].decode(sums[name]), size) for name in TENSORS]
    if any(FORMS[name].has_wrapped(sums[name], MOST_SUMMED) for name in TENSORS) or not _is_possible(*total):
        words = "a silo or the aggregator gave false numbers; sum anew, or train without them"
        raise ProtocolError(f"expected content sums that data can have, got impossible numbers: {words}")
    if at.included:
        own = add_content(at)
        others = [one - _symmetric(FORMS[name].decode(own[name]), size) for one, name in zip(total, own, strict=True)]
        if _is_possible(*others):  # not where the process was killed before its part had left
            total = others
    return ContentStatistics("content", encoder, summed.hexdigest(), *total)


def _is_possible(profiles: Float64, pairs: Float64, items: Float64) -> bool:
    """Checks if A, T^T diag(n) T = A - D and S are positive.

    With others W would be no number.
    """
    for one in (profiles, profiles - pairs, items):
        values = np.linalg.eigvalsh(one)
        if values[0] < -SLACK * max(float(values[-1]), 1.0):
            return False
    return True


def _upper(matrix: Float64) -> Float64:
    found: Float64 = matrix[np.triu_indices(len(matrix))]
    return found


def _symmetric(upper: Float64, size: int) -> Float64:
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size)] = upper
    return matrix + np.triu(matrix, 1).T


def read_content(arrays: Arrays, metadata: Mapping[str, str]) -> ContentStatistics:
    """Reads the other silos' sums from the disk.

    ValueError for a file whose arrays have changed.
    """
    values = (arrays["profiles"], arrays["pairs"], arrays.get("items"))
    found = ContentStatistics("content", metadata["encoder"], metadata["summed"], *values)
    if found.metadata()["check"] != metadata["check"]:
        raise ValueError("expected the arrays that the digest was computed of, got others")
    return found


def can_take_out(method: MethodSettings) -> bool:
    """Checks if a silo can take its own part out of the sums.

    Each can, as the sums are kept without it.
    """
    del method
    return True


def cost_content(method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the costs of the matrices, and of encoding and adding up the silo's items."""
    size = count_features(method.basis.encoder)
    words = f"{CONTENT_SUM.statistics} ({size:,} columns)"
    held = 8.0 * size * (2.0 * shard.items + 8192.0) + 200.0 * size**2
    operations = SPARSE * 2.0 * shard.edges * size + 2.0 * shard.users * size**2 + 1e5 * shard.items
    return [Cost("the sums", FIXED_BYTES + 16.0 * size**2), Cost(words, held, operations)]


def bytes_of_content(method: MethodSettings) -> float:
    """Estimates the memory of W and of the matrices that it is solved from."""
    return 100.0 * count_features(method.basis.encoder) ** 2


def warn_of_few_users(method: MethodSettings) -> tuple[str, ...]:
    """Warns that sums over few users reveal their profiles."""
    size = count_features(method.basis.encoder)
    return (
        f"the content sums are products of users' features in {size:,} columns: from the sum over fewer users than"
        " columns, all silos together, their profiles can be computed but for a rotation",
    )


CONTENT_SILO_SUM = SiloSum(
    declared=CONTENT_SUM,
    task="items",
    count=count_content,
    digests=digest_content,
    add=add_content,
    finish=finish_content,
    load=read_content,
    may_add_all_data=can_take_out,
    costs=cost_content,
    use_bytes=bytes_of_content,
    warnings=warn_of_few_users,
    nothing="this silo's items have neither titles nor attributes, or features of another encoder than the"
    " federation's",
)
