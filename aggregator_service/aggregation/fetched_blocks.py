"""Values of one block of all updates, fetched in checked ranges.

They lie in a file without a name, client by client, because a rule reads them span by span, and those of all clients
are more than a worker's memory takes. An update's body is in the one form that `require_canonical` asks for: so the
place of a tensor follows from the body's size and the declaration alone, and no header has to be read.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise

import numpy as np

from aggregator_service.storage.body_parts import PART_BYTES, BodyRange, DamagedUpdatesError
from aggregator_service.storage.disk import Blobs
from aggregator_service.storage.records import StoredUpdate
from shared.method.parameters import STORED, Array, Form, Update
from shared.protocol.wire import StoredPlace, names_in_order
from shared.strategies.blockwise import Block

GATHERED = 16 << 20  # bytes of ranges that are asked for together


class FormArrays(Mapping[str, Array]):
    """Arrays of which the forms alone are known."""

    def __init__(self, forms: Mapping[str, Form]) -> None:
        self._forms = forms

    def form(self, name: str) -> Form:
        return self._forms[name]

    def part(self, name: str, begin: int, end: int) -> Array:
        raise LookupError(f"expected a fetched block with the values {begin} to {end} of {name!r}, got none")

    def __getitem__(self, name: str) -> Array:
        return self.part(name, 0, self._forms[name].size)

    def __contains__(self, name: object) -> bool:  # that of Mapping would read the array
        return name in self._forms

    def __iter__(self) -> Iterator[str]:
        return iter(self._forms)

    def __len__(self) -> int:
        return len(self._forms)


class BodyLayout:
    """Places of the tensors in each update's body, behind its head."""

    def __init__(self, forms: Mapping[str, Form]) -> None:
        self.forms = forms
        names = names_in_order(forms)
        begins = list(accumulate((forms[name].bytes for name in names), initial=0))
        self.bytes = begins.pop()
        self._places = {name: StoredPlace(begin, forms[name]) for name, begin in zip(names, begins, strict=True)}

    def span(self, name: str, begin: int, end: int) -> tuple[int, int]:
        """Returns the first byte of some values and the byte behind them."""
        place = self._places[name].part(begin, end)
        return place.begin, place.begin + place.form.bytes

    def ranges(self, block: Block) -> list[tuple[int, int]]:
        """Returns the ranges of bytes of a block; near ones are joined."""
        found: list[tuple[int, int]] = []
        for begin, end in sorted(self.span(*span) for span in block):
            if found and begin - found[-1][1] < PART_BYTES:
                found[-1] = found[-1][0], max(end, found[-1][1])
            else:
                found.append((begin, end))
        return found


class FetchedArrays(FormArrays):
    """Values of one update in the file of a fetched block.

    rows: first byte of each range, its end, and its place in the file.
    """

    def __init__(self, layout: BodyLayout, file: int, rows: Sequence[tuple[int, int, int]], start: int) -> None:
        super().__init__(layout.forms)
        self._layout, self._file, self._rows, self._start = layout, file, rows, start

    def part(self, name: str, begin: int, end: int) -> Array:
        first, last = self._layout.span(name, begin, end)
        for row_begin, row_end, place in self._rows:
            if row_begin <= first and last <= row_end:
                content = os.pread(self._file, last - first, self._start + place + first - row_begin)
                return np.frombuffer(content, dtype=STORED[self._layout.forms[name].dtype])
        raise LookupError(f"expected values of {name!r} of a fetched block, got others")


@contextmanager
def fetch_block(
    blobs: Blobs, layout: BodyLayout, held: Sequence[StoredUpdate], block: Block, look: Callable[[], None]
) -> Iterator[list[Update]]:
    """Fetches a block of all updates, and yields these in their order.

    look: called between two groups of ranges. Raises DamagedUpdatesError with those that are not as they came.
    """
    ranges = layout.ranges(block)
    places = list(accumulate((end - begin for begin, end in ranges), initial=0))
    row = places.pop()
    rows = [(*one, place) for one, place in zip(ranges, places, strict=True)]
    step, damaged = max(1, GATHERED // max(1, row)), list[StoredUpdate]()
    with tempfile.TemporaryFile(dir=blobs.directory) as file:
        edges = [*range(0, len(held), step), len(held)]
        for group in (held[slice(*pair)] for pair in pairwise(edges)):
            look()
            asked = [_body_range(one, layout, *place) for one in group for place in ranges]
            found = blobs.read_ranges(asked)
            for number, one in enumerate(group):
                mine = found[number * len(ranges) : (number + 1) * len(ranges)]
                if any(content is None for content in mine):
                    damaged.append(one)
                else:
                    file.writelines(content for content in mine if content is not None)
        if damaged:
            raise DamagedUpdatesError(damaged)
        file.flush()
        yield [
            Update(one.receipt.client, FetchedArrays(layout, file.fileno(), rows, number * row), one.scalars)
            for number, one in enumerate(held)
        ]


def _body_range(one: StoredUpdate, layout: BodyLayout, begin: int, end: int) -> BodyRange:
    head = one.receipt.size - layout.bytes
    return BodyRange(str(one.blob), head + begin, head + end, one.receipt.size, one.parts or b"")
