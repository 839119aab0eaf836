"""Digests of a round's terms, which all its clients can compare."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable

from shared.message import Message
from shared.method.parameters import Parameters, digest_arrays
from shared.method.settings import MethodSettings
from shared.protocol.secure.messages import PublicKeys, RoundTerms
from shared.sums.sum import EMPTY_PART_DIGEST


def digest_start(mean: Parameters) -> str:
    """Computes the digest of the parameters that all clients begin a round with.

    Initial ones, or the mean of the round before (Eq. 13), without the scalars that the server gives each client:
    `Mixing.split_server_scalars` takes them away.
    """
    scalars = sorted((name, value.hex()) for name, value in mean.scalars.items())
    return _digest([digest_arrays(mean.arrays), scalars])


def digest_method(method: MethodSettings) -> str:
    """Computes the digest of all settings of a run."""
    return _digest(method.model_dump(mode="json"))


def digest_anchor(method: MethodSettings, *, seed: int, number: int) -> str:
    """Computes the digest of everything that K^R of a round follows from.

    See `shared.method.anchor`. number: of the round.
    """
    key = number if method.anchor.every_round else 0
    return _digest([method.anchor.model_dump(mode="json"), method.cutoff, seed, key])


def find_differences(own: Message, other: Message) -> tuple[str, ...]:
    """Lists the fields in which two messages of one kind differ."""
    if own == other:
        return ()
    return tuple(name for name in type(own).model_fields if getattr(own, name) != getattr(other, name))


def describe_terms(own: RoundTerms, other: RoundTerms) -> str:
    """Describes how terms differ from those that the round began with."""
    names = [name for name in find_differences(own, other) if name != "common"]
    differing = ", ".join([*find_differences(own.common, other.common), *names])
    return f"expected the terms that round {own.round} of {own.run} began with, got another {differing}"


def describe_unlike_lists(members: Iterable[PublicKeys]) -> str | None:
    """Describes which members sum over different lists of items; None for one list."""
    owners: dict[str | None, list[str]] = {}
    for one in members:
        if one.catalogue != EMPTY_PART_DIGEST:
            owners.setdefault(one.catalogue, []).append(one.client)
    if len(owners) < 2:
        return None
    groups = "; ".join(", ".join(sorted(names)) for names in sorted(owners.values()))
    lists = "the same list of items, or features and classes of nodes (catalogue)"
    return f"expected every silo to have {lists}, got {len(owners)} different ones: {groups}"


def describe_few_parts(members: Iterable[PublicKeys], least: int) -> str | None:
    """Describes why a sum with too few non-zero parts must stay closed; else None.

    least: smallest number of parts that are not zeros. A sum of fewer would reveal them, however many members it has.
    """
    adding = [one.catalogue != EMPTY_PART_DIGEST for one in members]
    if all(adding) or sum(adding) >= least:
        return None
    return (
        f"expected {least} silos or more with something to add, such as titles or attributes of items, or labels of"
        f" nodes, got {sum(adding)} of {len(adding)}: this sum is not opened, because it would tell of these alone; sum"
        " again once more silos have some"
    )


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
