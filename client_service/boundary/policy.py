"""Policy of a silo, and the declaration of what it lets leave."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from shared.errors import PrivacyError
from shared.message import Message
from shared.method.declaration import Counts, Declaration
from shared.method.settings import MethodSettings
from shared.protocol.lengths import MOST_UPDATE_BYTES, least_update
from shared.strategies import SHARES_ITEMS, SHARES_STATISTICS, STRATEGIES, build_strategy
from shared.strategies.agreement import declare_federation
from shared.strategies.strategy import Strategy
from shared.sums import find_sum, list_sums, method_of_part

USUAL_STRATEGIES = tuple(name for name in STRATEGIES if name not in SHARES_ITEMS | SHARES_STATISTICS)
USUAL_SCALARS = tuple(
    dict.fromkeys(scalar for name in USUAL_STRATEGIES for scalar in build_strategy(name, MethodSettings()).scalars)
)


SumConsent = Literal["no", "noised", "secure", "open"]
"""Consent to a sum (`Sum.word`). noised: only with noise, under masks; secure: only under masks; open: also without."""


class Policy(Message):
    """Policy of a silo: what it allows.

    It only restricts what the federation asks for.
    """

    strategies: tuple[str, ...] = Field(
        USUAL_STRATEGIES,
        description=("strategies in which this silo takes part; one that shares items or features must be named"),
    )
    item_tables: bool = Field(
        False, description="allows item tables to leave where the model, not the strategy, shares them"
    )
    scalars: tuple[str, ...] = Field(USUAL_SCALARS, description="scalars that may leave")
    counts: bool = Field(False, description="allows the numbers of users, items and edges to leave, for the anchor")
    anchors: int = Field(
        32, ge=1, le=10_000, description="largest number of anchors with which a shard's spectrum is compared"
    )
    anchor_size: Counts | None = Field(
        None, description="agreed size of the anchor, for federations whose anchor has the size of counts"
    )
    changing_members: bool = Field(
        False,
        description=(
            "secure runs: allows this silo to leave or join alone between rounds, which can reveal "
            "its update; the operator must allow it too"
        ),
    )
    common_basis: SumConsent = Field(
        "no",
        description=(
            "allows sums of items' statistics. noised: only with basis.epsilon and masks; secure: "
            "only with masks; open: also unmasked. Others learn which items some silo has; unmasked, "
            "the aggregator sees this silo's own statistics, and so may every silo, by the difference"
            " of two sums"
        ),
    )
    item_list: SumConsent = Field(
        "no",
        description=(
            "allows sums of hashed ids of items, of which all learn which items two silos or more "
            "have. secure: only with masks. An id that is guessed can be tested against the sum; "
            "unmasked, the aggregator can test this silo's own"
        ),
    )
    content: SumConsent = Field(
        "no",
        description=(
            "allows sums of products of items' features over users. secure: only with masks. They "
            "have no ids of items or users; unmasked, the aggregator sees this silo's own, which "
            "reveal the profiles of few users"
        ),
    )
    transitions: SumConsent = Field(
        "no",
        description=(
            "allows sums of which item visits click after which. secure: only with masks. Others "
            "learn which items some silo has; unmasked, the aggregator sees this silo's own"
        ),
    )
    node_directions: SumConsent = Field(
        "no",
        description=(
            "allows sums of products of nodes' features with common directions. secure: only with "
            "masks. Others learn which features occur together; unmasked, the aggregator sees this "
            "silo's own, which reveal the features of single nodes"
        ),
    )
    node_gram: SumConsent = Field(
        "no",
        description=(
            "allows sums of products of features and labels of nodes and their neighbours. secure: "
            "only with masks. They have no ids and no edges; unmasked, the aggregator sees this "
            "silo's own, which reveal the features of few nodes"
        ),
    )
    node_borders: SumConsent = Field(
        "no",
        description=(
            "allows sums of nodes' features for silos whose nodes are their neighbours. secure: only "
            "with masks. Each silo reads sums over its own nodes' foreign neighbours, "
            "nodes.border_own or more of a silo's; where those of two nodes differ by one, it reads "
            "that one's features by subtraction. A guess of an id reveals whether some silo has that "
            "node. Unmasked, the aggregator sees this silo's own sums"
        ),
    )
    basis_changes: int = Field(
        3, ge=3, le=1024, description="smallest number of silos by whose data two sums of the common basis may differ"
    )
    basis_budget: float = Field(
        8.0,
        gt=0,
        le=1e6,
        description=("largest epsilon of one user that noised sums of the common basis may spend, over all runs"),
    )
    basis_delta: float = Field(1e-5, gt=0, lt=1, description="delta at which that epsilon is computed")
    least_members: int = Field(
        3,
        ge=3,
        le=1024,
        description="secure runs: smallest number of members of a sum, of those that the silo has accepted",
    )
    colluders: float = Field(
        1 / 3,
        ge=0,
        le=1,
        description="secure runs of 64 clients or more: share of the members that may collude without the graph of"
        " neighbours telling a part; 1: no graph, everybody is everybody's neighbour",
    )
    least_similarity: float = Field(
        1.0, ge=0, le=1, description="secure runs: smallest similarity_floor; 1: all start each round with the mean"
    )
    max_upload_bytes: int = Field(MOST_UPDATE_BYTES, ge=1, description="largest update that may leave, in bytes")
    most_memory_bytes: int | None = Field(
        None, ge=1, description="largest memory of a run, by an estimate before it; none: 3/4 of the memory"
    )
    most_round_seconds: float = Field(
        86_400.0, gt=0, description="longest computation of a round in seconds, by an estimate before the run"
    )


def allowed_declaration(strategy: Strategy, method: MethodSettings, policy: Policy, *, secure: bool) -> Declaration:
    """Returns the strategy's declaration where the silo's policy allows all of it.

    Raises PrivacyError if it does not, and SettingsError for a secure run whose strategy needs single updates.
    """
    if strategy.name not in policy.strategies and strategy.shard_statistics:
        statistics = " and ".join(sorted(strategy.shard_statistics))
        words = f"one that is named, because {strategy.name!r} tells {statistics} of this silo"
        raise PrivacyError(f"policy: expected a strategy of {list(policy.strategies)}, or {words}, got it unnamed")
    if strategy.name not in policy.strategies:
        raise PrivacyError(f"policy: expected a strategy of {list(policy.strategies)}, got {strategy.name!r}")
    if strategy.shares_items(method) and strategy.name not in SHARES_ITEMS and not policy.item_tables:
        raise PrivacyError(f"policy: expected a model without an item table, got {method.model!r}; or item_tables")
    if forbidden := set(strategy.scalars) - set(policy.scalars):
        raise PrivacyError(f"policy: strategy {strategy.name!r} sends {sorted(forbidden)}, which this silo forbids")
    _require_sum_allowed(method, policy, secure=secure)
    declaration = declare_federation(strategy, method, secure=secure)
    if (least := max(map(least_update, declaration.parts))) > policy.max_upload_bytes:
        expected = f"expected max_upload_bytes of {least:,} or more, as an update of this federation has"
        raise PrivacyError(f"policy: {expected}, got {policy.max_upload_bytes:,}")
    return declaration


def _require_sum_allowed(method: MethodSettings, policy: Policy, *, secure: bool) -> None:
    if not secure and any(one.epsilon is not None for one in (method.basis, *method.sums.values())):
        words = "expected a secure federation with basis.epsilon, because each silo adds a part of the noise alone"
        raise PrivacyError(f"policy: {words}, got an open one")
    for part in list_sums(method):
        _require_consent(method_of_part(method, part), policy, secure=secure)


def _require_consent(method: MethodSettings, policy: Policy, *, secure: bool) -> None:
    """Raises PrivacyError if the policy does not allow a sum."""
    word = find_sum(method).word
    says: SumConsent = getattr(policy, word)
    noised = says == "noised" and method.basis.epsilon is not None
    if not (says == "open" or (secure and (noised or says == "secure"))):
        needed = "'secure' or 'open'" if secure else "'open', because nothing is masked here"
        words = f"policy: expected {word} = {needed} with basis.kind = {method.basis.kind!r}"
        raise PrivacyError(f"{words}, got {says!r}")
