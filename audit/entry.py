"""The way into every command line: what a command that cannot go on says, and the status that it ends with."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.text import Text

from audit.terminal import ERR
from shared.errors import FederationError, SettingsError

CLOSED_PIPE = 128 + signal.SIGPIPE  # as a shell reports a command that wrote to a reader who had gone


def run_command_line(command: Callable[[], object]) -> None:
    """Run a command line.

    An error of the tree, and a file or folder that the system refuses, is one line on stderr and exit code 1 or, for
    settings, 2. Where nobody reads stdout any more, as behind `| head`, the command ends without a word.
    """
    try:
        try:
            command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # now: what this meets when the interpreter ends nobody could catch
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
    """End without a message. Stdout goes nowhere, so that the interpreter's flush at its end cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(CLOSED_PIPE)
