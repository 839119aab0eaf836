"""Terms of a federation's sums in words, for the consent of a silo that joins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from shared.method.declaration import TRAINING, Declaration
from shared.method.settings import MethodSettings
from shared.protocol.signing.invitation import FederationOut
from shared.strategies import build_strategy
from shared.strategies.agreement import declare_federation
from shared.strategies.strategy import Strategy
from shared.sums import find_sum, list_sums, method_of_part, needs_list
from shared.sums.common_items import ITEMS
from shared.sums.content import CONTENT
from shared.words import format_bytes
from simulation.joining.own_data import own_data_of

MASKED = (
    "- masked: only the sum over all silos can be read, if the others are who the aggregator says (`lpsfed members`)"
)
OPEN = "- in the open: the aggregator reads this silo's own statistics"


def describe_terms(name: str, federation: FederationOut) -> Sequence[str]:
    """Describes in lines what leaves a silo, what others learn, and what stays."""
    own, method = own_data_of(federation.task), federation.method
    strategy = build_strategy(federation.strategy, method)
    declared = declare_federation(strategy, method, secure=federation.secure)
    assert declared.sums, "only of a federation that sums"
    chosen = {part: method_of_part(method, part) for part in list_sums(method)}
    sums = (_describe_sums(declared.sums[part], one, secure=federation.secure) for part, one in chosen.items())
    learnt = list(dict.fromkeys(find_sum(one).disclosure(one.basis) for one in chosen.values()))
    # Exact sums hide rare pairs and say so after the words of iterated sums: the shorter text becomes a remark.
    for shorter in [one for one in learnt if any(other != one and other.startswith(one) for other in learnt)]:
        learnt.remove(shorter)
        learnt.append("in iterated sums also pairs of items that few users have")
    listed = f"{method.catalogue:,} listed items" if needs_list(method) else "their items"
    over = "items that silos have in common, by their ids" if ITEMS in chosen else listed
    over = (own.summed or over) + (", and of their titles and attributes" if CONTENT in chosen else "")
    return (
        f"{name}: this federation sums statistics of {over}. With --accept sums:",
        *(f"- leaves this silo: {one}" for one in sums),
        MASKED if federation.secure else OPEN,
        _describe_training(strategy, declared, secure=federation.secure),
        f"- the others learn, from the sums over all silos: {learnt[0]}",
        *(f"- and they learn: {one}" for one in learnt[1:]),
        "- all other silos together could subtract their parts from a sum, and see this silo's",
        f"- stays here: {own.stays}",
    )


def _describe_sums(declared: Declaration, method: MethodSettings, *, secure: bool) -> str:
    chosen = find_sum(method)
    count = chosen.rounds(method.basis)
    words = dict.fromkeys(chosen.words.get(spec.name, chosen.statistics) for spec in declared.uploaded)
    sent = sum(math.prod(spec.shape) for spec in declared.uploaded) * 4 * count
    rounds = f" in {count} rounds" if count > 1 else ", once"
    one_of = "" if method.basis.places is None else f", where the list of common items chooses {method.basis.kind} sums"
    return f"{', and '.join(words)}: {format_bytes(sent)}{rounds}{one_of}, {'masked' if secure else 'in the open'}"


def _describe_training(strategy: Strategy, declared: Declaration, *, secure: bool) -> str:
    if strategy.sums_alone:
        return "- nothing else leaves: no network is trained or sent, and the silo makes its model of the sums"
    trained = "as the aggregator sent them, because nothing is trained" if strategy.enough_rounds else "trained"
    once = f"a round: {', '.join((_describe_networks(declared.of_part(TRAINING)), *declared.scalars))}"
    seen = [name for name, scalar in strategy.scalars.items() if scalar.visible or not secure]
    return f"- leaves too, {once}; {trained}{_describe_visible_scalars(seen)}"


def _describe_networks(declared: Declaration) -> str:
    sent = sum(math.prod(spec.shape) for spec in declared.uploaded) * 4
    groups = dict.fromkeys(spec.name.partition(".")[0] for spec in declared.uploaded)
    return f"the networks {' and '.join(groups)} ({format_bytes(sent)})"


def _describe_visible_scalars(scalars: Sequence[str]) -> str:
    return f"; the aggregator reads {' and '.join(scalars)} of this silo by itself" if scalars else ""


def warn_missing_texts(shard: Path, federation: FederationOut) -> Sequence[str]:
    """Warns, in one line, a silo that would add zeros to the content sums.

    No line for another silo.
    """
    if CONTENT not in list_sums(federation.method) or not own_data_of(federation.task).titled:
        return ()
    from client_service.data.interaction_files import load_shard
    from client_service.sums.content import find_agreed_features

    if find_agreed_features(load_shard(shard), method_of_part(federation.method, CONTENT)) is not None:
        return ()
    return (
        "- its items have neither titles nor attributes, or features of another encoder: it adds zeros to the sums of"
        " features, gains nothing by them, and the others learn that; add titles in an items.csv beside the data",
    )
