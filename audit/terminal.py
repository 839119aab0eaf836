"""The two streams of a terminal, which show strings as they are. Who prints one line of an error needs no more."""

from __future__ import annotations

from typing import Any, Final

from rich.console import Console
from rich.text import Text

TURNING = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))  # the order of what follows
BREAKING = (0x2028, 0x2029)
LONE = range(0xD800, 0xE000)  # halves of a sign, which no terminal can be sent
KEPT = {ord("\n"), ord("\t")}
SHOWN: Final = {code: ascii(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), *TURNING, *BREAKING, *LONE)}
"""What a terminal obeys in the place of showing it -> how it is shown."""
OF_TEXT: Final = {code: shown for code, shown in SHOWN.items() if code not in KEPT}


def show_controls(text: str) -> str:
    """Text in which no character moves the cursor, changes colours, turns the line round or asks the terminal."""
    return text.translate(OF_TEXT)


def as_one_line(text: str) -> str:
    """The same for a title or an id, of which a line's end is no part either."""
    return text.translate(SHOWN)


class LiteralConsole(Console):
    """Prints every string as it is: without markup, and controls are shown, not obeyed.

    A title, an id or an answer may come from anybody. What has a style is a `Text`, made of words of our own.
    """

    def __init__(self, *, stderr: bool = False, highlight: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=highlight, markup=False, emoji=False)

    def render_str(self, text: str, **given: Any) -> Text:
        return super().render_str(show_controls(text), **given)


OUT = LiteralConsole(highlight=True)
ERR = LiteralConsole(stderr=True, highlight=True)
