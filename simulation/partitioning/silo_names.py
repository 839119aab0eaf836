"""A number of silos -> what each is called."""

from __future__ import annotations


def number_silos(silos: int) -> tuple[str, ...]:
    """1 to `silos` as text, with leading zeros, so that names sort as their numbers do."""
    digits = len(str(silos))
    return tuple(f"{number:0{digits}d}" for number in range(1, silos + 1))
