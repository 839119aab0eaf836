"""Finding of one check: what was expected, what was found, and whether it held."""

from __future__ import annotations

from collections.abc import Iterable

from shared.message import Message

SHOWN = 3  # faults named in the finding's sentence


class AuditFinding(Message):
    """Finding of one check, with every fault."""

    name: str
    expected: str
    found: str
    held: bool
    faults: tuple[str, ...] = ()


def make_finding(name: str, expected: str, good: str, faults: Iterable[str]) -> AuditFinding:
    """Makes a finding from faults.

    good: what was found where there is no fault.
    """
    distinct = tuple(dict.fromkeys(faults))
    more = f"; and {len(distinct) - SHOWN} more" if len(distinct) > SHOWN else ""
    summary = "; ".join(distinct[:SHOWN]) + more if distinct else good
    return AuditFinding(name=name, expected=expected, found=summary, held=not distinct, faults=distinct)
