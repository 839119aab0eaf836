"""Docstrings -> help texts: each paragraph is one line, which the terminal's width alone breaks."""

from __future__ import annotations

import inspect

import typer


def join_lines(text: str) -> str:
    """Paragraphs stay apart, the lines of each are put together."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in inspect.cleandoc(text).split("\n\n"))


def set_help_texts(app: typer.Typer) -> None:
    """Give every command of an app, and of the apps in it, its docstring as help, without the breaks of the source."""
    for command in app.registered_commands:
        command.help = join_lines((command.callback and command.callback.__doc__) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            set_help_texts(group.typer_instance)
