"""Terminal output, errors of commands, and flags that several commands share."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from shared.errors import FederationError, SettingsError
from shared.faults import describe_fault, describe_setting

QUOTE: Final = "'"
CHOICES: Final = re.compile(r".* is not one of (.*)\., got .*", re.DOTALL)
CLOSED_PIPE = 128 + signal.SIGPIPE  # as a shell reports a command that wrote to a reader who had gone


def run_command_line(command: Callable[[], object]) -> None:
    """Runs a command; an expected error is one line on stderr.

    Exit code 2 for settings, else 1, also for a file or folder that the system refuses. Where the reader of stdout
    has gone, as behind `| head`, the command ends without a message.
    """
    try:
        try:
            command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # now: an error at the interpreter's end could not be caught
    except FederationError as error:
        _exit_with_error(str(error), 2 if isinstance(error, SettingsError) else 1)
    except BrokenPipeError:
        _exit_closed_pipe()
    except OSError as error:
        if error.filename is None:
            raise
        _exit_with_error(f"{os.fsdecode(error.filename)}: expected a usable file or folder, got: {error.strerror}", 1)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich have caught it, and end with 1
            _exit_closed_pipe()
        raise


def _exit_with_error(reason: str, status: int) -> NoReturn:
    ERR.print(Text("error:", "red"), reason, highlight=False, soft_wrap=True)
    sys.exit(status)


def _exit_closed_pipe() -> NoReturn:
    """Exits without a message, with stdout closed so that the last flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(CLOSED_PIPE)


class CommandGroup(TyperGroup):
    """Group of commands whose wrong option values are errors as all others are."""

    def invoke(self, ctx: Any) -> Any:
        """Runs a command; SettingsError for an option's value that typer refuses."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            raise _option_error(error) or error from None


def _option_error(error: typer.BadParameter) -> SettingsError | None:
    """Returns the error of an option's wrong value in our words; None for any other."""
    cause = error.__cause__
    if error.param is None or not isinstance(cause, ValueError) or not hasattr(cause, "errors"):
        return None
    fault = cause.errors()[0]
    said = describe_fault(fault, describe_setting)
    if choices := CHOICES.fullmatch(said):
        said = f"expected one of {choices[1].replace(QUOTE, '')}, got {describe_setting(fault)}"
    names = [one for one in error.param.opts if one.startswith("--")] or [(error.param.name or "").upper()]
    return SettingsError(f"{names[0]}: {said}")


def spread_records(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces each dataclass parameter of a command by flags of its fields.

    Commands that share flags share the record, and pass it on whole.
    """
    parameters: list[inspect.Parameter] = []
    records: dict[str, tuple[type[Any], tuple[str, ...]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = parameter.annotation
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            fields = inspect.signature(kind, eval_str=True).parameters
            records[parameter.name] = (kind, tuple(fields))
            parameters += fields.values()
        else:
            parameters.append(parameter)
    spread_out = inspect.Signature([one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters])

    @functools.wraps(command)
    def spread(**flags: Any) -> None:
        bound = spread_out.bind(**flags)
        bound.apply_defaults()
        given = dict(bound.arguments)
        for name, (kind, fields) in records.items():
            given[name] = kind(**{field: given.pop(field) for field in fields})
        command(**given)

    spread.__signature__ = spread_out  # type: ignore[attr-defined]  # what typer reads
    spread.__annotations__ = {one.name: one.annotation for one in parameters}
    return spread


TURNING = (
    0x061C,
    0x200E,
    0x200F,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)  # they change the direction of the text after them
BREAKING = (0x2028, 0x2029)
LONE = range(0xD800, 0xE000)  # halves of a sign, which no terminal can be sent
KEPT = {ord("\n"), ord("\t")}
SHOWN: Final = {code: ascii(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), *TURNING, *BREAKING, *LONE)}
"""Visible escape of each character that a terminal would obey instead of showing."""
OF_TEXT: Final = {code: shown for code, shown in SHOWN.items() if code not in KEPT}


def show_controls(text: str) -> str:
    """Replaces control characters by visible escapes, except newline and tab."""
    return text.translate(OF_TEXT)


def as_one_line(text: str) -> str:
    """Replaces control characters and line ends by visible escapes."""
    return text.translate(SHOWN)


class LiteralConsole(Console):
    """Console that prints strings as they are: no markup, visible control characters.

    A title, an id or an answer may come from an attacker. What has a style is a `Text`, made of words of our own.
    """

    def __init__(self, *, stderr: bool = False, highlight: bool = False) -> None:
        super().__init__(stderr=stderr, highlight=highlight, markup=False, emoji=False)

    def render_str(self, text: str, **given: Any) -> Text:
        return super().render_str(show_controls(text), **given)


OUT = LiteralConsole(highlight=True)
ERR = LiteralConsole(stderr=True, highlight=True)
