"""One thing that was checked: what was expected, what was found, and whether it held."""

from __future__ import annotations

from collections.abc import Iterable

from shared.message import Message

SHOWN = 3  # faults that are told in the sentence


class Finding(Message):
    name: str
    expected: str
    found: str
    held: bool
    faults: tuple[str, ...] = ()


def finding(name: str, expected: str, good: str, faults: Iterable[str]) -> Finding:
    """`good` is what was found where there is no fault."""
    told = tuple(dict.fromkeys(faults))
    more = f"; and {len(told) - SHOWN} more" if len(told) > SHOWN else ""
    found = "; ".join(told[:SHOWN]) + more if told else good
    return Finding(name=name, expected=expected, found=found, held=not told, faults=told)
