"""The two streams of a terminal. Who prints one line of an error needs no more than this."""

from __future__ import annotations

from rich.console import Console

OUT = Console()
ERR = Console(stderr=True)
