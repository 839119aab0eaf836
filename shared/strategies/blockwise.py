"""Centre of updates block by block, so that several processes can share one round.

A block is a span of coordinates of some tensors, never a group of clients. In floating point (a + b) + (c + d) is not
((a + b) + c) + d: partial sums over groups of names would round otherwise than one process does. Within a span every
coordinate is still summed over all clients in the order of their names, so the bytes do not depend on the blocks.

Rules that look at whole updates have no blocks, and run as before: Krum and clipping need distances between updates,
FedPub compares them with each other, and FedGSP makes a mean for each client. Sums of masked integers are made in
`protocol.secure`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from shared.errors import ProtocolError
from shared.method.parameters import (
    BLOCK,
    Array,
    Arrays,
    Form,
    Spans,
    State,
    Update,
    array_form,
    array_part,
    array_parts,
)
from shared.method.tensors import ITEM_TABLE
from shared.strategies.aggregation import centre_parts, mean_of_moved_rows, mean_of_updates, tensor_names
from shared.strategies.robust_aggregation import COLUMNS, PIECE, median, trimmed_mean
from shared.strategies.server_optimisers import combine_with_magnitudes
from shared.strategies.strategy import Combine

LEAST_BLOCK = 1 << 14  # values: opening every client's file for fewer would cost more than reading them


class Span(NamedTuple):
    """Some values of a tensor, in row order."""

    name: str
    begin: int
    end: int


Block = tuple[Span, ...]
Parts = Mapping[Span, Arrays]
"""Centre of each span, flat: of its tensor, and of reports that are made of it."""
Look = Callable[[], None]


Multiple = Callable[[int, str, Form], int]
"""(clients, name, form) -> number of values of which a rule's spans of this tensor are multiples."""


def _any_span(clients: int, name: str, form: Form) -> int:
    del clients, name, form
    return 1


def _whole_rows(clients: int, name: str, form: Form) -> int:
    """Returns the values of a table's row: the rule counts who has moved it."""
    del clients
    return _row(name, form)


def _whole_pieces(clients: int, name: str, form: Form) -> int:
    """Returns the columns that a robust rule works on at once.

    Others would round otherwise: numpy sums a single column in pairs.
    """
    del name, form
    return max(1, PIECE // clients)


MULTIPLES: Mapping[Callable[..., State], Multiple] = {
    mean_of_updates: _any_span,
    mean_of_moved_rows: _whole_rows,
    median: _whole_pieces,
    trimmed_mean: _whole_pieces,
}
"""Rules that work on each coordinate, or row of an item table, alone."""
STACKING: frozenset[Callable[..., State]] = frozenset(
    {median, trimmed_mean}
)  # rules that have a span of all clients in memory


def _base_rule(combine: Combine) -> Callable[..., State]:
    while isinstance(combine, partial):
        combine = combine.keywords["combine"] if combine.func is combine_with_magnitudes else combine.func
    return combine


def has_blocks(combine: Combine) -> bool:
    """Tells whether a rule can be computed block by block."""
    return _base_rule(combine) in MULTIPLES


def plan_blocks(combine: Combine, before: State, updates: Sequence[Update], *, fewest: int = 1) -> list[Block]:
    """Splits a round's tensors into blocks of bounded size; small tensors share one.

    fewest: number of blocks to make if there are enough values, for several workers to share.
    """
    names, clients, rule = tensor_names(before, updates), len(updates), _base_rule(combine)
    forms = {name: array_form(updates[0].arrays, name) for name in names}
    wanted = max(LEAST_BLOCK, min(BLOCK, math.ceil(sum(form.size for form in forms.values()) / fewest)))
    if rule in STACKING:
        wanted = min(wanted, COLUMNS // clients)
    spans = (
        span
        for name, form in forms.items()
        for span in _split_tensor(name, form.size, wanted, MULTIPLES[rule](clients, name, form))
    )
    return list(_fill_blocks(spans, wanted))


def gather_blocks(blocks: Sequence[Block], least: int) -> list[Block]:
    """Joins neighbouring blocks until each has enough values, without a change of spans."""
    found: list[list[Span]] = []
    for block in blocks:
        if found and sum(span.end - span.begin for span in found[-1]) < least:
            found[-1].extend(block)
        else:
            found.append(list(block))
    return [tuple(block) for block in found]


def _split_tensor(name: str, size: int, wanted: int, multiple: int) -> Iterator[Span]:
    step = max(1, wanted // multiple) * multiple
    return (Span(name, begin, min(begin + step, size)) for begin in range(0, max(1, size), step))


def _fill_blocks(spans: Iterator[Span], wanted: int) -> Iterator[Block]:
    block: list[Span] = []
    for span in spans:
        if block and sum(one.end - one.begin for one in (*block, span)) > wanted:
            yield tuple(block)
            block = []
        block.append(span)
    if block:
        yield tuple(block)


def _row(name: str, form: Form) -> int:
    return max(1, form.shape[1]) if name.endswith(ITEM_TABLE) and len(form.shape) == 2 else 1


class SpanArrays(Mapping[str, Array]):
    """One span of a tensor as an array of its own, read when needed.

    whole: form of the tensor. look: called before each reading, to show that this process is alive.
    """

    def __init__(self, arrays: Arrays, span: Span, whole: Form, look: Look | None = None) -> None:
        self._arrays, self._span, self._look = arrays, span, look
        size, row = span.end - span.begin, _row(span.name, whole)
        in_rows = row > 1 and size % row == 0 and span.begin % row == 0
        self._form = Form(whole.dtype, (size // row, row) if in_rows else (size,))

    def __getitem__(self, name: str) -> Array:
        return self.part(name, 0, self.form(name).size).reshape(self._form.shape)

    def form(self, name: str) -> Form:
        if name != self._span.name:
            raise KeyError(name)
        return self._form

    def part(self, name: str, begin: int, end: int) -> Array:
        if self._look is not None:
            self._look()
        start = self._span.begin
        return array_part(self._arrays, name, start + begin, min(start + end, self._span.end))

    def __contains__(self, name: object) -> bool:  # that of Mapping would read the array
        return name == self._span.name

    def __iter__(self) -> Iterator[str]:
        return iter((self._span.name,))

    def __len__(self) -> int:
        return 1


def combine_block(
    combine: Combine, before: State, updates: Sequence[Update], block: Block, look: Look | None = None
) -> Parts:
    """Computes the centre of one block by the rule of whole updates."""
    if combine is mean_of_updates:
        return _mean_of_block(updates, block, look)
    return {span: _combine_span(combine, before, updates, span, look) for span in block}


def _mean_of_block(updates: Sequence[Update], block: Block, look: Look | None) -> Parts:
    """Computes the mean of a block; reads each update once for a type of tensors."""
    ordered, parts = sorted(updates, key=lambda one: one.client), dict[Span, Arrays]()
    by_type: dict[str, list[Span]] = {}
    for span in sorted(block):
        by_type.setdefault(array_form(ordered[0].arrays, span.name).dtype, []).append(span)
    for dtype, spans in by_type.items():
        centre = centre_parts(_read_updates(ordered, spans, look), len(ordered), dtype)
        ends = accumulate(end - begin for _, begin, end in spans)
        parts |= {
            span: {span.name: centre[end - span.end + span.begin : end]} for span, end in zip(spans, ends, strict=True)
        }
    return parts


def _read_updates(updates: Sequence[Update], spans: Spans, look: Look | None) -> Iterator[Array]:
    for update in updates:
        if look is not None:
            look()
        yield array_parts(update.arrays, spans)


def _combine_span(combine: Combine, before: State, updates: Sequence[Update], span: Span, look: Look | None) -> Arrays:
    whole = array_form(updates[0].arrays, span.name)
    start = State(SpanArrays(before.arrays, span, whole) if span.name in before.arrays else {})
    theirs = [Update(one.client, SpanArrays(one.arrays, span, whole, look), {}) for one in updates]
    centre = combine(start, theirs)
    return {name: np.ravel(value) for name, value in {**centre.arrays, **centre.reports}.items()}


class JoinedBlocks:
    """Centre of a round that is filled block by block, in any order."""

    def __init__(self, combine: Combine, before: State, updates: Sequence[Update], blocks: Sequence[Block]) -> None:
        self._combine, self._before, self._updates = combine, before, updates
        self._forms = {name: array_form(updates[0].arrays, name) for name in tensor_names(before, updates)}
        self._missing = {span for block in blocks for span in block}
        self._arrays: dict[str, Array] = {}

    def add_block(self, block: Block, parts: Parts) -> None:
        """Adds the centre of a block; raises ProtocolError for one of other spans or sizes."""
        if set(parts) != set(block) or any(
            len(values) != span.end - span.begin for span in block for values in parts[span].values()
        ):
            raise ProtocolError(f"expected the centre of {len(block)} spans of given sizes, got another")
        for span in block:
            form = self._forms[span.name]
            for name, values in parts[span].items():
                if name not in self._arrays:
                    self._arrays[name] = np.empty(form.shape, dtype=values.dtype)
                self._arrays[name].reshape(-1)[span.begin : span.end] = values
            self._missing.discard(span)

    def finish(self) -> State:
        """Returns the centre, with the scalars, which the rule computes of all clients at once."""
        if self._missing:
            raise ProtocolError(f"expected blocks of all values, {len(self._missing)} spans are missing")
        alone = [replace(one, arrays={}) for one in self._updates]
        rest = self._combine(replace(self._before, arrays={}), alone)
        kept = {name: value for name, value in self._arrays.items() if name in self._before.arrays}
        reports = {name: value for name, value in self._arrays.items() if name not in kept}
        return replace(rest, arrays=kept, reports=reports)


def combine_by_blocks(combine: Combine, before: State, updates: Sequence[Update]) -> State:
    """Computes the centre of updates in this process; by blocks where the rule has them."""
    if not updates or not has_blocks(combine):
        return combine(before, updates)
    blocks = plan_blocks(combine, before, updates)
    joined = JoinedBlocks(combine, before, updates, blocks)
    for block in blocks:
        joined.add_block(block, combine_block(combine, before, updates, block))
    return joined.finish()
